"""Let agents repair small repositories, each in a sandbox of its own, and judge the patches in fresh ones.

As SWE-ReX and Inspect evaluate agents for code: every task has files, a report, and tests that the agent never sees.
Each agent has a shell that stays, looks around, changes files and hands in a diff. Agents work side by side;
`FUMEHOOD_URL` and `FUMEHOOD_API_KEY` spread them over the machines of a cluster, and nothing else changes. The agents
here follow a script, so that no model is needed; one of them is wrong.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from fumehood import AsyncSandbox, CommandExitError

AT_ONCE = 4
BEGIN = "cd work && git init -q && git add . && git -c user.name=a -c user.email=a@b commit -qm start"


@dataclass(frozen=True)
class Task:
    """A repository, what is wrong with it, the tests of the judge, and what the scripted agent types."""

    name: str
    report: str
    code: str
    hidden: str
    typed: tuple[str, ...]


TASKS = (
    Task(
        name="mean",
        report="mean([]) fails; it should be 0.0",
        code="def mean(values):\n    return sum(values) / len(values)\n",
        hidden="assert code.mean([]) == 0.0 and code.mean([1, 3]) == 2",
        typed=("grep -n len code.py", "sed -i 's/ len(values)/ len(values) if values else 0.0/' code.py"),
    ),
    Task(
        name="slug",
        report="slug() leaves spaces at the ends",
        code="def slug(text):\n    return text.lower().replace(' ', '-')\n",
        hidden="assert code.slug(' A b ') == 'a-b'",
        typed=("cat code.py", "sed -i 's/text.lower/text.strip().lower/' code.py"),
    ),
    Task(
        name="clamp",
        report="clamp() returns the wrong bound",
        code="def clamp(value, low, high):\n    return min(low, max(value, high))\n",
        hidden="assert [code.clamp(value, 0, 9) for value in (-1, 5, 12)] == [0, 5, 9]",
        typed=("sed -i 's/min(low, max(value, high))/max(low, min(value, high))/' code.py",),
    ),
    Task(
        name="words",
        report="words() counts empty words",
        code="def words(text):\n    return len(text.split(' '))\n",
        hidden="assert code.words('a  b') == 2 and code.words('') == 0",
        # It repairs what the report shows, and not what is behind it.
        typed=("sed -i \"s/split(' ')/replace('  ', ' ').split(' ')/\" code.py",),
    ),
)


async def repaired(task: Task) -> tuple[str, str]:
    """Let the agent work in a sandbox; return the sandbox's machine and the diff."""
    async with AsyncSandbox(timeout=300, metadata={"task": task.name}) as sandbox:
        await sandbox.files.write("work/code.py", task.code)
        await sandbox.files.write("work/REPORT", task.report)
        shell = await sandbox.create_code_context(language="bash")
        await sandbox.run_code(BEGIN, context=shell)

        for line in task.typed:
            await sandbox.run_code(line, context=shell)

        diff = await sandbox.run_code("git diff", context=shell)
        return sandbox.id[:6], "".join(diff.logs.stdout)


async def judged(task: Task, diff: str) -> bool:
    """Apply a diff in a fresh sandbox, where no agent has been, and run the hidden tests there."""
    async with AsyncSandbox(timeout=300) as sandbox:
        await sandbox.files.write("work/code.py", task.code)
        await sandbox.files.write("work/patch", diff)
        await sandbox.files.write("work/hidden.py", f"import code_ as code\n{task.hidden}\n")

        try:
            await sandbox.commands.run(
                "cd work && git apply patch && mv code.py code_.py && python hidden.py"
            )
        except CommandExitError:
            return False

        return True


async def evaluate(task: Task, places: asyncio.Semaphore) -> tuple[str, bool]:
    """Do one task from its beginning to its verdict; return its machine and the verdict."""
    async with places:
        machine, diff = await repaired(task)
        return machine, await judged(task, diff)


async def main() -> None:
    """Evaluate all tasks, and print the figures."""
    places = asyncio.Semaphore(AT_ONCE)
    found = await asyncio.gather(*(evaluate(task, places) for task in TASKS))

    for task, (_, is_right) in zip(TASKS, found, strict=True):
        print(f"{task.name:8} {'resolved' if is_right else 'not resolved'}")

    machines = Counter(machine for machine, _ in found)
    print(f"{sum(is_right for _, is_right in found)} of {len(found)} resolved, on {len(machines)} machine(s)")


if __name__ == "__main__":
    asyncio.run(main())
