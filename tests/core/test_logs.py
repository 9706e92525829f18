import json
import logging
import subprocess
import sys
from datetime import UTC, datetime

from forebay.logs import JsonFormatter, TextFormatter
from forebay.request_trace import RequestTrace, context_of

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


LOG_WITHOUT_END = """
import logging, sys
from forebay.logs import configure_logs
configure_logs("info", {form!r})
for number in range(30_000):
    logging.getLogger("forebay.demo").info("line %d %s", number, "x" * 100)
print("done", flush=True)
sys.stdin.readline()
logging.getLogger("forebay.demo").info("the last one")
"""


def test_a_pipe_that_nobody_reads_stops_nobody() -> None:
    """Lines are dropped and counted; once it is read, what follows comes through."""
    script = LOG_WITHOUT_END.format(form="json")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "done\n"
        # Half of what waits: now there is room.
        lines = [process.stderr.readline() for _ in range(5_000)]
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.close()
        lines += process.stderr.readlines()
    messages = [json.loads(line)["message"] for line in lines]
    assert messages[0].startswith("line 0 ")
    assert "the last one" in messages
    assert any("lines were dropped" in message for message in messages)
    assert len(messages) < 30_000


def test_a_line_about_a_request_has_its_id() -> None:
    trace = RequestTrace("order-66?", b"")
    logged = record("failed")
    forms = (JsonFormatter().format, TextFormatter("%(message)s").format)
    about, others = ([context_of(of).run(form, logged) for form in forms] for of in (trace, None))
    assert json.loads(about[0])["request_id"] == "order-66?"
    assert about[1] == "failed (request order-66?)"
    assert "request_id" not in json.loads(others[0])
    assert others[1] == "failed"
