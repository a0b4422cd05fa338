"""The results of steps as rows of a table, and the report file."""
import datetime
import pathlib
import platform
from dataclasses import dataclass, field

from load import Tally

HEADER = ("step", "runs", "right", "lost", "different", "resumed", "longest gap, s", "ready again, s", "seen")


@dataclass
class Row:
    """One step on one installation, over all its runs."""
    step: str
    num_runs: int = 0
    tally: Tally = field(default_factory=Tally)
    ready_seconds: float = 0.0  # the longest of all runs
    notes: list = field(default_factory=list)
    failures: list = field(default_factory=list)  # the reason of each run that did not show what the step claims

    def add(self, tally, ready_seconds, notes, failure):
        self.num_runs += 1
        self.tally.add(tally)
        self.ready_seconds = max(self.ready_seconds, ready_seconds)
        self.notes = notes or self.notes  # the notes of the latest run that has any
        if failure is not None:
            self.failures.append(failure)

    @property
    def is_good(self):
        return self.tally.is_clean and not self.failures and self.tally.num_right > 0

    def cells(self):
        seen = "; ".join([*(f"FAILED: {each}" for each in self.failures), *self.notes])
        return (self.step, self.num_runs, self.tally.num_right, len(self.tally.lost), self.tally.num_different,
                self.tally.num_resumed, f"{self.tally.longest_gap[0]:.1f}", f"{self.ready_seconds:.0f}", seen)


def line(cells):
    # A bar within a cell would end the cell.
    return "| " + " | ".join(str(each).replace("\n", " ").replace("|", "/") for each in cells) + " |"


def table(rows):
    total = Tally()
    for row in rows:
        total.add(row.tally)
    sums = ("all", sum(row.num_runs for row in rows), total.num_right, len(total.lost), total.num_different,
            total.num_resumed, f"{total.longest_gap[0]:.1f}", "", "")
    return "\n".join([line(HEADER), line(["---"] * len(HEADER)), *(line(row.cells()) for row in rows), line(sums)])


def machine_text():
    memory = next((each.split()[1] for each in pathlib.Path("/proc/meminfo").read_text("utf-8").splitlines()
                   if each.startswith("MemTotal:")), "0")
    cpus = [each.partition(":")[2].strip() for each in pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines()
            if each.startswith("model name")]
    return (f"{len(cpus)} CPUs ({cpus[0] if cpus else platform.machine()}), {int(memory) // 2**20} GiB, "
            f"Linux {platform.release()}")


class Report:
    """Rewrites its file after every step, so that an interrupted run leaves the results of the steps before."""

    def __init__(self, path, heading):
        self._path = pathlib.Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._heading = heading  # a list of lines
        self.rows = {}  # variant name -> list of Row

    def add(self, variant, row):
        self.rows.setdefault(variant, []).append(row)
        self._path.write_text(self.text(), "utf-8")

    @property
    def is_good(self):
        return all(row.is_good for rows in self.rows.values() for row in rows)

    def num_streams(self):
        return sum(row.tally.num_right for rows in self.rows.values() for row in rows)

    def text(self):
        parts = [f"# Steps on a cluster, {datetime.date.today()}", "\n".join(self._heading)]
        for variant, rows in self.rows.items():
            parts += [f"## {variant}", table(rows)]
        parts.append(f"{self.num_streams()} answers were right.")
        return "\n\n".join(parts) + "\n"
