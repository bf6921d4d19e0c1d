import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "tilegen" / "__init__.py").read_text()).group(1)

setup(
    name="tilegen",
    version=VERSION,
    description=(
        "Tiles of dependent operations side by side in one kernel, with the synchronisation derived and"
        " proved."
    ),
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="the tilegen authors",
    license="MIT",
    license_files=["LICENSE"],
    project_urls={"The work that tilegen continues": "https://arxiv.org/abs/2305.13450"},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 15)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Software Development :: Code Generators",
        "Typing :: Typed",
    ],
    keywords=["CUDA", "GPU", "kernel fusion", "code generation", "synchronisation", "PyTorch"],
    python_requires=">=3.10",
    packages=[*find_packages(include=["tilegen", "tilegen.*"]), "tilegen.templates"],
    package_dir={"tilegen": "tilegen", "tilegen.templates": "templates"},
    package_data={
        "tilegen": ["residuals.json", "py.typed"],
        "tilegen.templates": ["**/*.j2", "emulator/*", "host/*"],
    },
    include_package_data=False,
    zip_safe=False,  # templates and their hash are read as files
    install_requires=["torch>=2.11", "sympy>=1.13", "jinja2>=3.1", "numpy>=1.26", "cuda-python>=13.3,<14"],
    extras_require={
        "calibrate": ["scikit-learn>=1.5"],  # grows the trees of the cost model
        "nvrtc": ["nvidia-cuda-nvrtc==13.0.*"],  # where torch brings none: a CPU build of it
        "test": [
            *[
                "pytest>=8",
                "pytest-xdist",
                "hypothesis",
                "islpy",
                "z3-solver",
                "ruff",
                "mypy",
                "import-linter",
                "scikit-learn>=1.5",
            ],
            *["setuptools>=77", "nvidia-cuda-nvrtc==13.0.*", "nvidia-cuda-nvdisasm>=13,<14"],
        ],
    },
    entry_points={
        "console_scripts": ["tilegen=tilegen.cli:main"],
        "torch_dynamo_backends": ["tilegen=tilegen.backend.backend:tilegen"],
    },
)
