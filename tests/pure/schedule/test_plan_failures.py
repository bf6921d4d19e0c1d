"""Plan files changed by hand, or not plans at all: refused with a PlanError or a ProofError that says what is
wrong."""

import copy
import json
from pathlib import Path

import pytest

import tilegen as tg
from tilegen.frontend.loader import load_program

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
WRONG = (tg.PlanError, tg.ProofError)
FORBIDDEN = [
    "__import__('os').system('true')",
    "().__class__",
    "acc0.real",
    "acc0 if acc0 else acc0",
    "[acc0]",
    "lambda: acc0",
    "exec('1')",
    "relu(acc0, acc0)",
    "relu(*acc0)",
    "relu(x=acc0)",
    "acc0 ** 2",
    "acc0 // 2",
    "acc0 < 1",
    "acc1",
    "e0",
    "system",
    "'text'",
    "True",
    "1j",
    "1e999",
    "1_0",
    "(acc0 := 1)",
    "acc0 # text",
    "acc0\n#include </dev/null>\n",
    "acc0; acc0",
    "acc0 +",
    "",
    "\0",
    "(" * 300 + "acc0" + ")" * 300,
    "acc0" + "+acc0" * 20000,
]


@pytest.fixture(scope="module")
def made():
    return tg.plan(
        load_program(str(EXAMPLES / "gpt3_mlp.py"), {"M": 8, "H": 32, "I": 16, "dtype": "float32"}), "cpu:2"
    )


@pytest.fixture
def data(made):
    return copy.deepcopy(made.to_json())


def refused(data, *words, error=tg.PlanError):
    with pytest.raises(error) as caught:
        tg.verify(data)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in {caught.value}"


def test_the_plan_itself_is_right(data):
    assert tg.verify(data).ok


@pytest.mark.parametrize("version", [0, 1, "2", None])
def test_version(data, version):
    data["version"] = version
    refused(data, "version", repr(version), "expected 3")


KEYS = [
    "machine",
    "lowering",
    "scheduling",
    "tensors",
    "ops",
    "arguments",
    "outputs",
    "policies",
    "semaphores",
    "maps",
    "order",
    "sizes",
    "program",
]


@pytest.mark.parametrize("key", KEYS)
def test_missing_key(data, key):
    del data[key]
    refused(data, key)


@pytest.mark.parametrize("value", [None, 5, "text", [1, 2]], ids=str)
@pytest.mark.parametrize("key", [k for k in KEYS if k not in ("lowering", "scheduling", "program")])
def test_a_key_of_another_type(data, key, value):
    data[key] = value
    with pytest.raises(tg.PlanError):
        tg.verify(data)


@pytest.mark.parametrize("key", ["kind", "attributes", "operands", "result", "tile", "cluster"])
def test_missing_key_of_an_op(data, key):
    del data["ops"]["up"][key]
    refused(data, key)


@pytest.mark.parametrize("flag", ["pingpong", "pixels"])
def test_flags_of_an_op_are_true_or_false(data, flag):
    data["ops"]["up"][flag] = 1
    refused(data, f"{flag} is 1, expected true or false")


@pytest.mark.parametrize("key", ["declared", "dtype", "role", "form"])
def test_missing_key_of_a_tensor(data, key):
    del data["tensors"]["h"][key]
    refused(data, key)


@pytest.mark.parametrize(
    "change", [{"sms": None}, {"sms": "2"}, {"sms": 0}, {"sms": -1}, {"colour": 1}], ids=str
)
def test_machine(data, change):
    data["machine"].update(change)
    refused(data, "machine", *change, error=WRONG)


@pytest.mark.parametrize("key", ["sms", "name", "wait_us"])
def test_missing_key_of_a_machine(data, key):
    del data["machine"][key]
    refused(data, "machine", key)


@pytest.mark.parametrize("target", [0, 7, 10**6, -1, None, "8"])
def test_target_of_a_semaphore(data, target):
    assert target not in data["semaphores"]
    data["semaphores"][0] = target
    refused(data, "semaphore targets", "changed by hand")


def test_number_of_semaphores(data):
    data["semaphores"].append(1)
    refused(data, "semaphore targets", "changed by hand")


@pytest.mark.parametrize("expression", FORBIDDEN, ids=lambda e: repr(e)[:24])
def test_forbidden_expression(data, expression):
    data["ops"]["up"]["attributes"]["epilogue"]["expression"] = expression
    refused(data, "expression", "up")


@pytest.mark.parametrize("expression", [None, 5, ["acc0"]], ids=str)
def test_an_expression_is_text(data, expression):
    data["ops"]["up"]["attributes"]["epilogue"]["expression"] = expression
    refused(data)


@pytest.mark.parametrize("name", ["h; system(0)", "h\n#include </dev/null>", "class", "", "a b", "__h"])
def test_names_of_tensors_are_checked(data, name):
    """They are written into the generated source."""
    text = json.dumps(data).replace('"h"', json.dumps(name))
    refused(json.loads(text), repr(name))


@pytest.mark.parametrize("name", ["up; system(0)", "up\n#include </dev/null>", "class"])
def test_names_of_ops_are_checked(data, name):
    text = json.dumps(data).replace('"up"', json.dumps(name))
    refused(json.loads(text), repr(name))


@pytest.mark.parametrize("name", ["x\n#include </dev/null>", 5])
def test_the_name_of_the_program_is_checked(data, name):
    data["program"] = name
    refused(data, "5" if name == 5 else repr(name), error=WRONG)


@pytest.mark.parametrize("kind", ["gemm", "", None, 5])
def test_unknown_kind(data, kind):
    data["ops"]["up"]["kind"] = kind
    refused(data, "kind", repr(kind), "linear", error=(tg.PlanError, tg.AnalysisError))


def test_missing_attribute(data):
    del data["ops"]["up"]["attributes"]["groups"]
    refused(data, "up", error=WRONG)


@pytest.mark.parametrize("dtype", ["float64", "int16", "", None])
def test_unknown_dtype(data, dtype):
    data["tensors"]["h"]["dtype"] = dtype
    refused(data, "'h'", repr(dtype), error=WRONG)


def test_dtype_that_no_op_gives(data):
    data["tensors"]["h"]["dtype"] = "int8"
    refused(data, "up gives h as int8", error=tg.ProofError)


@pytest.mark.parametrize(
    "tile",
    [[], [0, 8, 8], [8, 8], [8, -8, 8], [8, 8, 8, 8], [8, 8, 1.5], [8, 8, True], ["8", 8, 8], 8],
    ids=str,
)
def test_wrong_tile(data, tile):
    data["ops"]["up"]["tile"] = tile
    with pytest.raises(WRONG, match="up"):
        tg.verify(data)


@pytest.mark.parametrize("parts", [0, -1, 3, 1.5, "2", True])
def test_wrong_parts(data, parts):
    data["ops"]["up"]["cluster"] = parts
    with pytest.raises(WRONG, match="up"):
        tg.verify(data)


CLUSTER_SPLITS = [
    ("diagonal", "k, km, m, n"),
    (2, "k, km, m, n"),
    (None, "k, km, m, n"),
    ("m", "7 does not share 64 rows evenly"),
]


@pytest.mark.parametrize(("cluster_split", "said"), CLUSTER_SPLITS)
def test_wrong_share(data, cluster_split, said):
    data["ops"]["up"].update(cluster=7, cluster_split=cluster_split)
    refused(data, "'up'", said)


@pytest.mark.parametrize("operand", ["nope", 5, {"tensor": "nope"}, {"columns": [0, 8]}, None], ids=str)
def test_wrong_operand(data, operand):
    data["ops"]["down"]["operands"][0] = operand
    with pytest.raises(WRONG):
        tg.verify(data)


def test_wrong_maps(data):
    data["maps"][0]["groups"][0]["how"] = "some"
    refused(data, "some")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("how", ["all", "each", "every", "modulo", "table"])
@pytest.mark.parametrize("what", ["size", "blocks"])
@pytest.mark.parametrize("number", [0, -1, 1.5, True, "2", None, 2**31])
def test_groups_of_no_blocks(data, how, what, number):
    data["maps"][0]["groups"][1] |= {
        "how": how,
        "table": [0] * data["maps"][0]["groups"][1]["blocks"],
        what: number,
    }
    refused(data, "semaphores of 'up'", f"{what} of a group is {number!r}", "positive int")


@pytest.mark.parametrize("table", [[], [0], [0, 0, -1], [0.5] * 2, [7] * 2, None])
def test_tables_that_are_not_of_the_blocks(data, table):
    data["maps"][0]["groups"][1] |= {"how": "table", "blocks": 2, "table": table}
    refused(data)


def test_missing_maps(data):
    data["maps"], data["semaphores"] = [], []
    refused(data, "up->down", "'h'")


@pytest.mark.parametrize("scheduling", ["tickets", [[0]], [["a"]], 5, None], ids=str)
def test_wrong_placement(data, scheduling):
    data["scheduling"] = scheduling
    with pytest.raises(WRONG):
        tg.verify(data)


def test_an_order_without_a_tile(data):
    data["order"]["segments"].pop()
    refused(data, "order", "missing")


def test_an_order_with_a_tile_twice(data):
    data["order"]["segments"].append(data["order"]["segments"][0])
    refused(data, "order", "twice")


def test_an_order_of_unknown_ops(data):
    data["order"]["segments"][0]["op"] = "nope"
    refused(data, "order", "up")


# ---- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["not JSON"]),
        (b"{", ["not JSON"]),
        (b"\xff\xfe\x00", ["not JSON"]),
        (b"[1, 2]", ["JSON object", "list"]),
        (b"5", ["JSON object", "int"]),
        (b"null", ["JSON object", "NoneType"]),
        (b"[" * 100000, ["not JSON"]),
        (b"{}", ["version", "None", "expected 3"]),
    ],
    ids=lambda v: repr(v)[:16],
)
def test_files_that_are_no_plans(tmp_path, content, words):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    for given in (path, str(path)):
        with pytest.raises(tg.PlanError) as caught:
            tg.verify(given)
        assert all(word in str(caught.value) for word in words)


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "none.json", tmp_path, Path("/dev/null/plan.json")):
        with pytest.raises(tg.PlanError, match="cannot read") as caught:
            tg.verify(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("what", [None, 5, [1]], ids=str)
def test_what_is_no_plan_at_all(what):
    with pytest.raises(tg.TilegenError, match=type(what).__name__):
        tg.verify(what)
