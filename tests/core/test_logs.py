import json
import logging
import subprocess
import sys
from datetime import UTC, datetime

from forebay.logs import JsonFormatter

LOG_SOMETHING = """
import logging
from forebay.logs import configure_logs
configure_logs("info", {form!r})
log = logging.getLogger("forebay.demo")
log.debug("unseen")
log.info("store %s\\nline two é", "delays")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it broke")
logging.getLogger("httpx").info("unseen too")
"""


def record(message: str, *args: object, exc_info: object = None) -> logging.LogRecord:
    return logging.LogRecord("forebay.x", logging.WARNING, __file__, 1, message, args, exc_info)  # type: ignore[arg-type]


def test_a_record_is_one_line_of_json() -> None:
    logged = record('a "quoted" %s\nand a second line', "é")
    line = JsonFormatter().format(logged)
    assert "\n" not in line
    document = json.loads(line)
    assert document.keys() == {"time", "level", "logger", "message"}
    assert document["level"] == "warning"
    assert document["logger"] == "forebay.x"
    assert document["message"] == 'a "quoted" é\nand a second line'
    when = datetime.fromisoformat(document["time"])
    assert when.tzinfo == UTC
    assert abs(when.timestamp() - logged.created) < 0.002


def test_an_exception_is_part_of_the_line() -> None:
    try:
        raise RuntimeError("disk full")
    except RuntimeError:
        line = JsonFormatter().format(record("failed", exc_info=sys.exc_info()))
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("RuntimeError: disk full")


def logged_as(form: str) -> list[str]:
    script = LOG_SOMETHING.format(form=form)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not ran.stdout
    return ran.stderr.splitlines()


def test_json_logs_of_a_process_are_json_line_by_line() -> None:
    documents = [json.loads(line) for line in logged_as("json")]
    assert [document["message"] for document in documents] == ["store delays\nline two é", "it broke"]
    assert "ZeroDivisionError" in documents[1]["exception"]


def test_text_logs_of_a_process_are_for_people() -> None:
    lines = logged_as("text")
    assert lines[0].endswith("INFO    forebay.demo: store delays")
    assert not any("unseen" in line for line in lines)
