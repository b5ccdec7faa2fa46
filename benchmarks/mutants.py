"""Mutants: what a set of tests would notice if a line of the product were wrong.

    python -m benchmarks.mutants choose STATE [--count 60] [--seed 1]   # once; writes STATE/mutants.json
    python -m benchmarks.mutants plant STATE TREE      # build them all into the product of a checkout
    python -m benchmarks.mutants watch STATE TREE SET  # run the tests, note which of them execute which mutant
    python -m benchmarks.mutants kill STATE TREE SET   # for each mutant, those tests until one fails

All mutants are planted into one tree at once, ``ORIGINAL`` becomes ``(MUTATED if __m__(7) else ORIGINAL)``, and an
environment variable chooses the one that lives. So one run of the tests shows for all of them who executes them, also
in the processes that a test starts. TREE is a checkout that may be spoiled, with an environment of its own
(``make setup`` there). SET names what is kept under STATE, with the arguments for pytest in ``SET.args`` if that file
exists. Mutants live in the bodies of functions: constants, units, comparisons, arithmetic, logic, order, SQL and
dropped checks.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeGuard

PRODUCT = ("traceviz_dag", "assets", "sensors")
_LIVING, _HITS, _ORDER = "TRACEVIZ_MUTANT", "TRACEVIZ_MUTANT_HITS", "TRACEVIZ_MUTANT_ORDER"

# What each planted module runs: which mutant lives, and, while tests are watched, a line for each test and mutant.
_HERE = """
def __m__(number, _seen=set()):
    import os
    if os.environ.get("TRACEVIZ_MUTANT") == str(number):
        return True
    hits = os.environ.get("TRACEVIZ_MUTANT_HITS")
    if hits:
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        if (number, test) not in _seen:
            _seen.add((number, test))
            file = os.open(hits, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.write(file, f"{number}\\t{test}\\n".encode())
            os.close(file)
    return False
"""

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_IN_SQL = (
    ("<=", "<"), (">=", ">"), (" < ", " <= "), (" > ", " >= "), ("sum(", "max("), ("min(", "max("), ("max(", "min("),
    (" DESC", " ASC"), (" AND ", " OR "), ("LEFT JOIN", "JOIN"), (" - ", " + "), (" ORDER BY ", " ORDER BY 1 DESC, "),
    ("UNION ALL", "UNION"), ("count(*)", "1"), (" ASOF LEFT JOIN ", " ASOF JOIN "),
)  # fmt: skip
_SQL = re.compile(r"\b(SELECT|FROM|WHERE|GROUP BY|ORDER BY|JOIN)\b")
_UNITS = {10**3, 10**6, 10**9, 1 << 10, 1 << 20, 1 << 30, 1e3, 1e6, 1e9}


def _constant(value: object) -> ast.expr | None:
    """Another value of the same type: a unit a thousand times off, a number off by one, SQL that says another thing."""
    if isinstance(value, bool):
        return ast.Constant(not value)
    if isinstance(value, int):
        return ast.Constant(value // 1000 or 1 if value in _UNITS else value + 1)
    if isinstance(value, float):
        return ast.Constant(value / 1000 if value in _UNITS else value * 2 + 1)
    if isinstance(value, str) and _SQL.search(value):
        for old, new in _IN_SQL:
            if old in value:
                return ast.Constant(value.replace(old, new, 1))
    return None


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Kind and expression of what an expression could wrongly be."""
    match node:
        case ast.Constant(value=value) if (other := _constant(value)) is not None:
            yield ("sql" if isinstance(value, str) else "unit" if value in _UNITS else "constant"), other
        case ast.JoinedStr(values=parts):
            for place, part in enumerate(parts):
                if isinstance(part, ast.Constant) and (other := _constant(part.value)) is not None:
                    yield "sql", ast.JoinedStr([*parts[:place], other, *parts[place + 1 :]])
                    return
        case ast.Compare(left=left, ops=[first, *rest], comparators=compared) if type(first) in _COMPARED:
            yield "comparison", ast.Compare(left, [_COMPARED[type(first)](), *rest], compared)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED:
            yield "arithmetic", ast.BinOp(left, _COMPUTED[type(op)](), right)
        case ast.BoolOp(op=op, values=values):
            yield "logic", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "logic", operand
        case ast.Call(func=ast.Name(id="sorted"), args=args, keywords=keywords):
            if not any(each.arg == "reverse" for each in keywords):
                reverse = ast.keyword("reverse", ast.Constant(True))
                yield "order", ast.Call(ast.Name("sorted"), args, [*keywords, reverse])
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=args, keywords=keywords):
            yield "order", ast.Call(ast.Name("max" if name == "min" else "min"), args, keywords)


def _is_check(node: ast.AST) -> TypeGuard[ast.If]:
    """Whether a statement only refuses, skips or returns early."""
    leaves = ast.Raise | ast.Return | ast.Continue
    return isinstance(node, ast.If) and not node.orelse and len(node.body) == 1 and isinstance(node.body[0], leaves)


def _sites(tree: ast.Module, text: str) -> Iterator[dict[str, Any]]:
    """Each place of a module that can be mutated, with its text and the text that takes its place."""

    def visit(node: ast.AST, function: str) -> Iterator[dict[str, Any]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = f"{function}.{node.name}".strip(".")
            parts: list[ast.AST] = list(node.body)
            if isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
                parts = parts[1:]
            for part in parts:
                yield from visit(part, function)
            return
        if isinstance(node, ast.Raise | ast.AnnAssign | ast.pattern | ast.Assert):
            # What an error says is no behaviour; annotations and patterns take no conditions.
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                yield from visit(node.value, function)
            return
        if function and _is_check(node):
            yield site(node.test, "dropped check", ast.Constant(False), function)
        if function and isinstance(node, ast.expr):
            for kind, other in _changes(node):
                yield site(node, kind, other, function)
        if isinstance(node, ast.JoinedStr):
            return  # positions inside are not exact
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    def site(node: ast.expr, kind: str, other: ast.expr, function: str) -> dict[str, Any]:
        original = ast.get_source_segment(text, node) or ""
        mutated = ast.unparse(ast.fix_missing_locations(other))
        return {"kind": kind, "function": function, "line": node.lineno, "original": original, "mutated": mutated}

    for each in visit(tree, ""):
        if each["original"] and each["original"] != each["mutated"] and "__m__" not in str(each["original"]):
            yield each


def _room(path: Path) -> str:
    """The folder below the package that a file belongs to."""
    return "/".join(path.parts[:2]) if len(path.parts) > 2 else path.parts[0]


def choose(root: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Mutants over all rooms: two a room, the rest by their lines; kinds as even as a room allows."""
    chance = random.Random(seed)
    found: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    lines: dict[str, int] = defaultdict(int)
    for package in PRODUCT:
        for path in sorted((root / package).rglob("*.py")):
            text, name = path.read_text(), path.relative_to(root)
            lines[_room(name)] += text.count("\n")
            seen: dict[tuple[object, ...], int] = defaultdict(int)
            for each in _sites(ast.parse(text), text):
                key = (each["function"], each["kind"], each["original"])
                found[_room(name)][str(each["kind"])].append({"file": str(name), "occurrence": seen[key], **each})
                seen[key] += 1
    rooms = sorted(found)
    share = dict.fromkeys(rooms, 2)
    for room in chance.choices(rooms, [lines[room] for room in rooms], k=max(count - 2 * len(rooms), 0)):
        share[room] += 1
    chosen: list[dict[str, Any]] = []
    for room in rooms:
        kinds = sorted(found[room])
        lines_taken: set[tuple[object, object]] = set()
        while share[room]:
            one = chance.choice(found[room][chance.choice(kinds)])
            if (one["file"], one["line"]) not in lines_taken:  # planted expressions may not hold each other
                lines_taken |= {(one["file"], one["line"] + away) for away in range(-8, 9)}
                chosen.append(one)
                share[room] -= 1
    return [{"number": number, **each} for number, each in enumerate(chosen)]


def plant(root: Path, state: Path) -> None:
    """Build all mutants into the product of a checkout; one whose place is gone is named and left out."""
    helper = state / "here.py"
    helper.write_text(_HERE)
    by_file: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for mutant in json.loads((state / "mutants.json").read_text()):
        by_file[mutant["file"]].append(mutant)
    for name, mutants in by_file.items():
        path = root / name
        if not path.is_file():
            print(f"{name}: gone, with mutants {[each['number'] for each in mutants]}")
            continue
        text = path.read_text()
        places: list[tuple[int, int, str]] = []
        for mutant in mutants:
            place = _place(text, mutant)
            if place is None:
                print(f"mutant {mutant['number']} has no place in {name} any more: {mutant['original']}")
                continue
            places.append((*place, f"({mutant['mutated']} if __m__({mutant['number']}) else {mutant['original']})"))
        data = text.encode()
        for start, end, planted in sorted(places, reverse=True):
            data = data[:start] + planted.encode() + data[end:]
        text = data.decode()
        load = f"exec(open({str(helper)!r}).read())"
        if "from __future__ import annotations\n" in text:
            text = text.replace(
                "from __future__ import annotations\n", f"from __future__ import annotations; {load}\n", 1
            )
        else:
            text = f"{load}\n{text}"
        compile(text, name, "exec")
        path.write_text(text)


def _place(text: str, mutant: dict[str, Any]) -> tuple[int, int] | None:
    """First and last byte of a mutant's expression."""
    lines = text.encode().splitlines(keepends=True)
    occurrence = 0
    tree = ast.parse(text)
    for site in _sites(tree, text):
        if all(site[key] == mutant[key] for key in ("function", "kind", "original")):
            if occurrence == mutant["occurrence"]:
                for node in ast.walk(tree):
                    here = isinstance(node, ast.expr) and node.lineno == site["line"]
                    if here and ast.get_source_segment(text, node) == site["original"]:
                        before = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
                        return before, before + len(str(site["original"]).encode())
            occurrence += 1
    return None


def _pytest(tree: Path, *arguments: str, **variables: str) -> list[str]:
    """The command and what it needs in its environment, as an ``env`` call."""
    python = tree / ".venv/bin/python"
    return ["env", *(f"{name}={value}" for name, value in variables.items()), str(python), "-m", "pytest", *arguments]


def watch(state: Path, tree: Path, name: str) -> None:
    """One run of the tests without a living mutant: who executes which, and what each test costs."""
    hits = state / f"{name}.hits"
    hits.unlink(missing_ok=True)
    file = state / f"{name}.args"
    given = file.read_text().split() if file.exists() else ["--numprocesses", "auto", "--dist", "loadfile"]
    variables = {_HITS: str(hits), "TRACEVIZ_TEST_COSTS": str(state / f"{name}.costs")}
    started = time.perf_counter()
    with (state / f"{name}.log").open("w") as log:
        subprocess.run(_pytest(tree, *given, **variables), cwd=tree, stdout=log, stderr=log, check=False)
    print(f"{name}: {time.perf_counter() - started:.0f} s")


def _tests(state: Path, name: str) -> dict[int, list[str]]:
    """Mutant → the tests of each file that executes it, the file first whose tests that do so are the cheapest.

    Tests of a file share fixtures: what one of them made is what the next one looks at, so they keep their order.
    """
    costs = json.loads((state / f"{name}.costs").read_text())
    direct: dict[int, set[str]] = defaultdict(set)
    for line in (state / f"{name}.hits").read_text().splitlines():
        number, _, test = line.partition("\t")
        if (test := test.rsplit(" (", 1)[0]) in costs:
            direct[int(number)].add(test)
    files: dict[str, list[str]] = defaultdict(list)
    for test in costs:
        files[test.split("::")[0]].append(test)
    found = {}
    for number, tests in direct.items():
        cost: dict[str, float] = defaultdict(float)
        for test in tests:
            cost[test.split("::")[0]] += costs[test]
        found[number] = [each for file in sorted(cost, key=lambda file: cost[file]) for each in files[file]]
    return found


def kill(state: Path, tree: Path, name: str, workers: int, minutes: float) -> None:
    """For each mutant, the tests that execute it until one fails; goes on where a former call ended."""
    kept = state / f"{name}.killed.json"
    verdicts: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else {}
    mutants, tests = json.loads((state / "mutants.json").read_text()), _tests(state, name)
    already_failing = _failed((state / f"{name}.log").read_text())

    def verdict(number: int) -> dict[str, Any]:
        wanted = [each for each in tests.get(number, ()) if each not in already_failing]
        if not wanted:
            return {"killed": False, "why": "no test executes it"}
        order = state / f"{name}.{number}.order"
        order.write_text("\n".join(wanted))
        started = time.perf_counter()
        variables = {_LIVING: str(number), _ORDER: str(order)}
        command = _pytest(
            tree, "-x", "-p", "benchmarks.mutants", *sorted({each.split("::")[0] for each in wanted}), **variables
        )
        with (state / f"{name}.{number}.log").open("w+") as log:
            try:
                subprocess.run(command, cwd=tree, stdout=log, stderr=log, timeout=minutes * 60, check=False)
            except subprocess.TimeoutExpired:
                return {"killed": None, "why": f"not decided in {minutes} minutes, {len(wanted)} tests"}
            log.seek(0)
            failed = sorted(_failed(text := log.read()))
        order.unlink()
        if not failed and "passed" not in text:
            failed = ["the tests cannot be collected"]
        return {
            "killed": bool(failed),
            "by": failed[:1],
            "tests": len(wanted),
            "seconds": round(time.perf_counter() - started),
        }

    pending = [each["number"] for each in mutants if str(each["number"]) not in verdicts]
    with ThreadPoolExecutor(workers) as pool:
        for number, found in zip(pending, pool.map(verdict, pending), strict=True):
            verdicts[str(number)] = found
            kept.write_text(json.dumps(verdicts, indent=0))
            mutant = mutants[number]
            print(number, mutant["file"], mutant["line"], mutant["kind"], found, flush=True)
    print(f"{name}: {sum(1 for each in verdicts.values() if each['killed'])} of {len(mutants)} killed")


def _failed(text: str) -> set[str]:
    """Tests that a log of pytest calls failed."""
    return set(re.findall(r"^(?:FAILED|ERROR) (\S+(?:\[.*?\])?)(?: - |$)", text, re.MULTILINE))


def pytest_collection_modifyitems(items: list[object]) -> None:
    """As a plugin of pytest: the tests that a file lists, in its order, and no others."""
    order = os.environ.get(_ORDER)
    if order:
        wanted = {name: place for place, name in enumerate(Path(order).read_text().splitlines())}
        items[:] = sorted((each for each in items if each.nodeid in wanted), key=lambda each: wanted[each.nodeid])


pytest_collection_modifyitems.trylast = True  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["choose", "plant", "watch", "kill"])
    parser.add_argument("state", type=Path)
    parser.add_argument("tree", type=Path, nargs="?", default=Path())
    parser.add_argument("set", nargs="?", default="tests")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=20)
    given = parser.parse_args()
    state, tree = given.state.resolve(), given.tree.resolve()
    state.mkdir(parents=True, exist_ok=True)
    if given.step == "choose":
        mutants = choose(tree, given.count, given.seed)
        (state / "mutants.json").write_text(json.dumps(mutants, indent=1))
        for each in mutants:
            print(
                each["number"],
                each["file"],
                each["line"],
                each["kind"],
                repr(each["original"])[:60],
                "->",
                repr(each["mutated"])[:60],
            )
    elif given.step == "plant":
        plant(tree, state)
    elif given.step == "watch":
        watch(state, tree, given.set)
    else:
        kill(state, tree, given.set, given.workers, given.minutes)


if __name__ == "__main__":
    sys.exit(main())
