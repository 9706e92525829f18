"""The cluster's processes: each a ``forebay`` command of its own, which ends with the one that started it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from forebay.errors import ForebayError
from forebay.linux import end_with_parent
from forebay_web.processes.python_module import module_command, module_environment

_STOP_TIMEOUT_S = 30.0
_SETTINGS_PREFIX = "FOREBAY_"


class DevProcess:
    """A worker or a router whose output goes to a file."""

    def __init__(self, name: str, arguments: list[str], directory: Path) -> None:
        self.name = name
        self._log = directory / f"{name}.log"
        with self._log.open("ab") as output:
            # A process group of its own: Ctrl-C would interrupt it a second time, which skips the clean end.
            self._process = subprocess.Popen(
                module_command("forebay", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(),
                process_group=0,
                preexec_fn=end_with_parent,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def ended(self) -> ForebayError:
        """The error for an operator that it has ended, with the last line of its output if it failed."""
        status = self._process.returncode
        if status < 0:
            return ForebayError(f"The process {self.name} was ended by {signal.Signals(-status).name}.")
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        last = lines[-1] if lines else "it printed nothing"
        return ForebayError(f"The process {self.name} ended with status {status}: {last}")

    def stop(self) -> None:
        """Ask it to end, without draining."""
        self._process.send_signal(signal.SIGINT)

    def wait(self) -> None:
        """Wait for its end; after half a minute it is killed."""
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()


def _environment() -> dict[str, str]:
    """This process's, without settings that are meant for other workers and routers."""
    found = module_environment().items()
    return {name: value for name, value in found if not name.startswith(_SETTINGS_PREFIX)}
