from setuptools import find_packages, setup

setup(
    name="tilegen",
    version="0.1.0",
    description="Tiles of dependent operations side by side in one kernel, with the synchronisation derived and proved.",
    python_requires=">=3.10",
    packages=[*find_packages(include=["tilegen", "tilegen.*"]), "tilegen.templates"],
    package_dir={"tilegen": "tilegen", "tilegen.templates": "templates"},
    package_data={"tilegen": ["tuned.json"], "tilegen.templates": ["**/*.j2"]},
    include_package_data=False,
    install_requires=["torch>=2.11", "sympy>=1.13", "jinja2>=3.1", "numpy>=1.26", "cuda-python>=13.3,<14"],
    extras_require={
        "test": [
            *["pytest>=8", "pytest-xdist", "hypothesis", "islpy", "z3-solver", "ruff", "mypy"],
            *["nvidia-cuda-nvrtc==13.0.*", "nvidia-cuda-nvdisasm>=13,<14"],
        ]
    },
    entry_points={"console_scripts": ["tilegen=tilegen.cli:main"]},
)
