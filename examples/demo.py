"""The main job, on real data, in one live sandbox. `make demo` runs it.

Everything below that looks like a notebook cell runs inside the sandbox; this file only sends it in and
shows what came out. What can be checked is checked on the host by other means, and a wrong answer ends the
demo with exit code 1.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import fumehood
from fumehood import Execution, FumehoodError, Layer, Sandbox
from fumehood.text import visible

DATA = Path(__file__).parent / "data" / "penguins.csv"
WIDTH = 100

ValueT = TypeVar("ValueT")


def main() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="where the plot is saved")
    output: Path = parser.parse_args().output

    try:
        output.mkdir(parents=True, exist_ok=True)
        run(output)
    except (FumehoodError, OSError, WrongAnswerError) as error:
        print(f"\nthe demo stopped: {error}", file=sys.stderr)
        return 1

    return 0


def run(output: Path) -> None:
    """All parts of the demo, in order."""
    print("fumehood: one live sandbox, real data")
    print("starting: the packages are imported once, later sandboxes are clones ...", flush=True)
    first_start, sandbox = timed(Sandbox)

    with sandbox:
        integral(sandbox)
        column_of_a_csv(sandbox)
        plot(sandbox, output)
        streamed_output(sandbox)
        error_and_correction(sandbox)
        account(sandbox, first_start)


def integral(sandbox: Sandbox) -> None:
    """A definite integral, against its exact value."""
    title("1. The integral of x² from 0 to 5")
    execution = cell(
        sandbox,
        """
        from scipy.integrate import quad
        value, error_bound = quad(lambda x: x**2, 0, 5)
        value
        """,
    )
    expect("the integral", number(execution), 125 / 3)
    print(f"  exact: 125/3 = {125 / 3:.12f}")


def column_of_a_csv(sandbox: Sandbox) -> None:
    """Mean and standard deviation of a column of an uploaded file."""
    title("2. A column of a real file (Palmer penguins, CC0)")

    with DATA.open("rb") as file:
        info = sandbox.files.write("penguins.csv", file)

    print(f"  uploaded {info.path}, {info.size_bytes:,} bytes")
    execution = cell(
        sandbox,
        """
        import pandas as pd
        penguins = pd.read_csv("penguins.csv")
        mass = penguins["body_mass_g"]
        print(f"{mass.count()} weighed, {mass.isna().sum()} not")
        float(mass.mean()), float(mass.std())
        """,
    )
    mean, deviation = (float(part) for part in listed(execution))

    exact_mean, exact_deviation = statistics.mean(masses()), statistics.stdev(masses())
    expect("the mean", mean, exact_mean)
    expect("the standard deviation", deviation, exact_deviation)
    print(f"  on the host, by the statistics module: {exact_mean:.6f}, {exact_deviation:.6f}")


def masses() -> list[float]:
    """The same column, read on the host without pandas."""
    with DATA.open(newline="") as file:
        return [float(row["body_mass_g"]) for row in csv.DictReader(file) if row["body_mass_g"] != "NA"]


def plot(sandbox: Sandbox, output: Path) -> None:
    """A plot that the code only shows: it arrives as a picture and as data."""
    title("3. A plot that is shown, not saved")
    execution = cell(
        sandbox,
        """
        import matplotlib.pyplot as plt
        for species, group in penguins.groupby("species"):
            plt.scatter(group["flipper_length_mm"], group["body_mass_g"], label=species, alpha=0.7)
        plt.title("Penguins: flipper and weight")
        plt.xlabel("flipper length (mm)")
        plt.ylabel("body mass (g)")
        plt.legend()
        plt.show()
        """,
    )
    result = next((result for result in execution.results if result.png), None)

    if result is None or result.png is None or result.chart is None or result.chart.type != "scatter":
        raise WrongAnswerError("the plot did not arrive as a picture and as a scatter chart")

    path = output / "penguins.png"
    path.write_bytes(result.png)
    chart = result.chart
    print(f"  picture: {path}, {len(result.png):,} bytes")
    print(f'  data:    {chart.type} chart "{chart.title}", x: {chart.x_label}, y: {chart.y_label}')

    for series in chart.elements:
        ys = [y for _, y in series.points if isinstance(y, (int, float)) and not math.isnan(y)]
        print(f"           {series.label:<10} {len(series.points):>4} points, heaviest {max(ys):,.0f} g")


def streamed_output(sandbox: Sandbox) -> None:
    """Lines that arrive while the cell still runs."""
    title("4. Output while a cell runs")
    code = """
        import time
        for step in range(1, 5):
            print(f"step {step} of 4")
            time.sleep(0.25)
        """
    show(code)
    start = time.monotonic()
    arrivals: list[float] = []

    def on_stdout(text: str) -> None:
        arrivals.append(time.monotonic() - start)
        print(f"  {arrivals[-1]:5.2f} s  {visible(text.rstrip())}", flush=True)

    checked(sandbox.run_code(dedented(code), on_stdout=on_stdout))
    end = time.monotonic() - start
    print(f"  {end:5.2f} s  the cell ended")

    if len(arrivals) < 4 or arrivals[0] > end - 0.5:
        raise WrongAnswerError("the output did not arrive while the cell ran")


def error_and_correction(sandbox: Sandbox) -> None:
    """A cell that fails, and the corrected one that goes on where it stopped."""
    title("5. A cell that fails, and the corrected one")
    code = """
        heavy = penguins[mass > 6000]
        heavy["weight"].mean()
        """
    show(code)
    execution = sandbox.run_code(dedented(code))

    if execution.error is None or execution.error.name != "KeyError":
        raise WrongAnswerError(f"a KeyError was expected, not {execution.error}")

    lines = execution.error.traceback.rstrip().splitlines()
    print(f"  error: {visible(execution.error.name)}: {visible(execution.error.value)}")
    print(f"  the traceback has {len(lines)} lines; its own line of code is among them:")
    print("   ", visible(next((line for line in lines if "heavy[" in line), lines[-1]).strip()))
    print("  the state is kept: `heavy` is there")
    execution = cell(sandbox, 'float(heavy["body_mass_g"].mean())')
    expect("the corrected mean", number(execution), statistics.mean(mass for mass in masses() if mass > 6000))


def account(sandbox: Sandbox, first_start: float) -> None:
    """Start times, memory and what holds the sandbox."""
    title("Start times, memory, isolation")
    second_start, second = timed(Sandbox)
    second.kill()
    stateless, _ = timed(lambda: fumehood.run_code("print(6 * 7)"))
    cell_time, _ = timed(lambda: sandbox.run_code("y = 1"))
    metrics, info = sandbox.get_metrics(), sandbox.get_info()

    rows = [
        ("first sandbox (imports the packages, once)", f"{first_start * 1e3:,.0f} ms"),
        ("another sandbox, taken from the pool", f"{second_start * 1e3:,.1f} ms"),
        ("a stateless call in a sandbox of its own", f"{stateless * 1e3:,.1f} ms"),
        ("a cell in the live sandbox", f"{cell_time * 1e3:,.1f} ms"),
        (
            "memory of this sandbox, now / most",
            f"{megabytes(metrics.memory_bytes)} / {megabytes(metrics.peak_memory_bytes)}",
        ),
        ("files of this sandbox", f"{metrics.disk_used_bytes:,} of {metrics.disk_total_bytes:,} bytes"),
        ("CPU time of this sandbox", f"{metrics.cpu_seconds:.2f} s"),
        ("isolation level", info.isolation.level),
    ]

    for name, value in rows:
        print(f"  {name:<46} {value}")

    show_layers(info.isolation.layers)


def show_layers(layers: Iterable[Layer]) -> None:
    """Each layer of isolation; a long reason is told once."""
    told: set[str] = set()

    for layer in layers:
        why = "for the same reason" if layer.why in told and layer.state != "on" else layer.why
        told.add(layer.why)
        line = f"    {layer.state:<9} {layer.name:<18} {why}".rstrip()
        print("\n".join(textwrap.wrap(line, WIDTH, subsequent_indent=" " * 33, drop_whitespace=True)))


def cell(sandbox: Sandbox, code: str) -> Execution:
    """Show a cell, run it, show what it printed and returned."""
    show(code)
    execution = checked(sandbox.run_code(dedented(code)))

    for line in visible(str(execution.logs)).splitlines():
        print(f"  {line}")

    if execution.text is not None:
        print(f"  Out[{execution.execution_count}]: {visible(execution.text)}")

    return execution


def checked(execution: Execution) -> Execution:
    """Refuse an execution that failed where none should."""
    if execution.error is not None:
        raise WrongAnswerError(visible(str(execution.error)))

    return execution


def number(execution: Execution) -> float:
    """The number at the end of a cell."""
    return float(execution.text or "nan")


def listed(execution: Execution) -> list[str]:
    """The numbers of the tuple at the end of a cell."""
    return (execution.text or "").strip("()").split(",")


def expect(what: str, actual: float, exact: float) -> None:
    """Refuse a number that is not what the host computed."""
    if not math.isclose(actual, exact, rel_tol=1e-9):
        raise WrongAnswerError(f"{what} is {actual!r}, and should be {exact!r}")


def timed(action: Callable[[], ValueT]) -> tuple[float, ValueT]:
    """Seconds that a call took, and what it returned."""
    start = time.perf_counter()
    value = action()
    return time.perf_counter() - start, value


def title(text: str) -> None:
    """A heading."""
    print(f"\n── {text} {'─' * (WIDTH - len(text) - 4)}")


def show(code: str) -> None:
    """Code, as it is sent in."""
    for line in dedented(code).splitlines():
        print(f"  │ {line}")


def dedented(code: str) -> str:
    """Code without the indentation of this file."""
    return textwrap.dedent(code).strip("\n")


def megabytes(size_bytes: int) -> str:
    """A size for people."""
    return f"{size_bytes / 2**20:.1f} MiB"


class WrongAnswerError(Exception):
    """The sandbox answered, and the answer is wrong."""


if __name__ == "__main__":
    sys.exit(main())
