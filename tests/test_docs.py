"""Check README and docs against the repository: links, paths, names, commands and code."""

import ast
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from nsde_policy import Policy, load_demonstrations
from nsde_policy.cli import main as cli
from tests.helpers.doc_pages import code_blocks

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "reference"),
]
FOLDERS = ("nsde_policy", "envs", "data", "eval", "benchmarks", "docs", "examples", "integrations", "tests")
ENTRY_POINT_GROUPS = {f"nsde_policy.{kind}" for kind in ("methods", "tasks", "readers", "encoders")}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def inline_code(page: Path) -> list[str]:
    """Return the inline code outside fenced blocks."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", text)


def find_commands(page: Path) -> list[str]:
    """Return every `nsde-policy …` of a page, without comments, as in a shell."""
    lines = [line for block in code_blocks(page, "bash", "sh") for line in block.splitlines()]
    lines += [code for code in inline_code(page) if " --" in code or "RUN" in code]
    commands = [line.partition(" #")[0].replace("…", "").strip() for line in lines]
    return [command for command in commands if command.startswith("nsde-policy ")]


def make_anchor(heading: str) -> str:
    """Return GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@each_page
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert anchor in map(make_anchor, headings), target


@each_page
def test_paths_exist(page):
    text = re.sub(r"\bmy_robot/\S+|https?://\S+", "", page.read_text())
    paths = re.findall(rf"(?<![\w/.<])(?:{'|'.join(FOLDERS)})/[\w./-]*\w", text)
    paths += re.findall(r"`((?:\w+/)+\w+\.py)`", text)
    missing = {
        path for path in paths if not any((ROOT / base / path).exists() for base in ("", "nsde_policy"))
    }
    made_up = r"-v\d$|/NAME(\.py)?$|/my_loop\.py$|^docs/images$"
    examples = {path for path in missing if re.search(made_up, path)}
    assert missing == examples


def test_the_map_of_the_rooms_is_the_tree():
    for tree in code_blocks(ROOT / "docs/architecture.md", "text")[1:2]:
        folders: list[Path] = []
        for line in tree.splitlines():
            depth = (len(line) - len(line.lstrip())) // 4
            names = re.split(r" {2,}", line.strip())[0].split(", ")
            parent = folders[depth - 1] if depth else ROOT
            assert all((parent / name).exists() for name in names), line
            folders = [*folders[:depth], parent / names[0]]
        rooms = {init.parent.name for init in (ROOT / "nsde_policy").glob("*/__init__.py")} - {"assets"}
        assert rooms <= {*re.findall(r"(\w+)/", tree)}


@each_page
def test_named_tests_exist(page):
    for file, name in re.findall(r"((?:integrations/\w+/)?tests/[\w/]+\.py)::(\w+)", page.read_text()):
        assert f"\ndef {name}(" in (ROOT / file).read_text(), name


@each_page
def test_dotted_names_import(page):
    for name in set(re.findall(r"\bnsde_policy(?:\.\w+)+", page.read_text())) - ENTRY_POINT_GROUPS:
        module, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), attribute), name


@each_page
def test_imports_in_python_blocks_work(page):
    for block in code_blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("nsde_policy"):
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


@cache
def find_words() -> set[str]:
    """Return every word of the source files and of the declared experiments."""
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    files += (ROOT / "benchmarks/experiments").glob("*.toml")
    sources = [file.read_text() for file in files]
    return set(re.findall(r"\w+", " ".join(sources)))


@each_page
def test_class_names_are_defined(page):
    for code in inline_code(page):
        if name := re.fullmatch(r"([A-Z][a-z]+[A-Z]\w*(?:\.\w+)?)(?:\(.*\))?", code):
            assert set(name[1].split(".")) <= find_words(), code


@each_page
def test_names_in_core_modules_are_defined(page):
    for module, name in re.findall(r"`(sde|batches|targets|losses|networks|state)\.(\w+)`", page.read_text()):
        assert name == "py" or hasattr(importlib.import_module(f"nsde_policy.core.{module}"), name), name


@each_page
def test_commands_parse(page):
    plugins = {"linear", "reach"}  # of the package in extending.md, which another test runs
    for command in find_commands(page):
        _, *args = shlex.split(command)
        if not plugins & {*args}:
            assert parses(args), command


def parses(args: list[str]) -> bool:
    """Return whether the command line accepts arguments, or prints its help."""
    try:
        cli.NSDE_POLICY.parse(args)
    except SystemExit as stop:
        return not stop.code
    return True


@each_page
def test_extras_exist(page):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = page.read_text()
    named = set(re.findall(r"extras? `(\w+)`", text))
    for group in re.findall(r"(?:nsde-policy|\.)\[([\w,]+)\]", text):
        named |= {*group.split(",")}
    assert named <= extras.keys()


@pytest.mark.parametrize(
    ("package", "module"),
    [("onnxruntime", "nsde_policy.deploy.runtime"), ("websockets", "nsde_policy.deploy.client")],
)
def test_robots_need_only_the_packages_that_the_docs_name(package, module):
    text = (ROOT / "docs/deployment.md").read_text()
    installed = re.search(rf"`pip install (numpy [\w ]*\b{package}\b[\w ]*)`", text)
    assert installed is not None
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    heavy = {re.split(r"[^\w-]", dependency)[0] for dependency in dependencies}
    assert heavy & {*done.stdout.split()} <= {*installed[1].split()}


def test_snippets_on_data_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load, write, expert = code_blocks(ROOT / "docs/data.md", "python")
    exec(write, {})
    exec(load.replace("angles=(4,)", "angles=(2,)"), {})
    assert len(load_demonstrations("my_demos.zarr", rate_hz=10)) == 1
    (tmp_path / "my_expert.py").write_text(expert)
    played = ["--env", "Pendulum-v1", "--policy", "my_expert:SwingUp", "--episodes", "1", "--workers", "1"]
    assert cli.main(["collect", "--out", "swing.zarr", *played]) == 0
    assert len(load_demonstrations("swing.zarr").act) == 200


def test_snippets_on_uncertainty_run():
    _, uncertainty = code_blocks(ROOT / "docs/control_loop.md", "python")
    names = {"policy": Policy.from_pretrained(), "obs": [235.0, 124.0, 299.6, 145.2, 5.378]}
    exec(uncertainty, names)
    assert names["plans"][0].states.shape == (9, 7)


def find_messages() -> list[str]:
    """Return every text in the source files; … stands for values that are formatted into it."""
    texts = []
    for file in (
        file for folder in ("nsde_policy", "data", "eval") for file in (ROOT / folder).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


def test_quoted_messages_are_printed_by_the_code():
    page = (ROOT / "docs/troubleshooting.md").read_text()
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(messages) > 20
    texts = find_messages()
    assert not [message for message in messages if not any(message in text for text in texts)]
