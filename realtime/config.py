"""The options of `midstream serve` and `midstream engine`: name, type, range, default and help of each, once.

`Options` and `ListenOptions` are the tables. The command line, the environment variables, `--help` and the
messages for values that are not right are all made from them. This module does not know what an option does.
"""

from __future__ import annotations

import dataclasses
import re
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from realtime.tools.formats import BY_NAME
from realtime.tools.spelling import AUTO

ANY_COUNT = 2**31 - 1
DAY_S = 86_400
PREFIX = "MIDSTREAM_"  # of environment variables
PORT = r"(\d{1,4}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
HOST = r"[^\s:\[\]/]+|[^\s\[\]/]*:[^\s\[\]/]*:[^\s\[\]/]*"  # IPv6 has two colons at least
HOST_AND_PORT = rf"(\[[0-9a-fA-F:]+\]|[^\s:\[\]/]+):{PORT}"
LISTEN = rf"unix:\S+|(grpc:)?{HOST_AND_PORT}"
ADDRESS = rf"unix:\S+|(grpc:)?(tls:)?{HOST_AND_PORT}"
ADDRESSES = rf"(({ADDRESS})( +|$))*"
# Of pages, and names in `Host`: what no browser ever says would never be allowed, and nobody would know why.
ORIGINS = r"((?!http:\S+:80( |$)|https:\S+:443( |$))https?://[a-z0-9._:\[\]-]+( +|$))*"
HOSTS = r"([A-Za-z0-9._-]+( +|$))*"
OF_CLIENTS = ("MIDSTREAM_API_KEY",)

Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]
Weights = Literal["auto", "f32", "bf16", "q8", "q4"]
Attention = Literal["auto", "sdpa", "triton", "flash_attn", "flashinfer"]
Exactness = Literal["auto", "on", "off"]
EnginePlace = Literal["process", "thread"]
FleetKind = Literal["embedded", "static", "ray"]
Switch = Literal["on", "off"]
EventLoop = Literal["asyncio", "uvloop"]
Draining = Literal["hand-over", "finish"]
Drafts = Literal["auto", "off"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["console", "json"]


def option(
    default: Any,
    purpose: str,
    *,
    least: float = 0,
    most: float = ANY_COUNT,
    pattern: str = ".+",
    right: str = "",
) -> Any:
    """An option: numbers lie from `least` to `most`, and texts match `pattern`, `right` in words."""
    rule = {"purpose": purpose, "least": least, "most": most, "pattern": pattern, "right": right}
    return dataclasses.field(default=default, metadata=rule)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What an engine is made by. Names carry their units; where a size may be 0, that leaves the choice to
    the engine."""

    model: str = option(
        "smollm2-135m-instruct",
        "model to serve: a known name, a local folder, a hub id, or toy",
        right="a known name, a local folder, a hub id, or toy",
    )
    model_name: str = option(
        "",
        "name by which clients ask for it; else the last part of --model",
        pattern=".*",
        right="a name",
    )
    adapter: str = option(
        "", "LoRA adapter to merge into the model: a local folder or a hub id", pattern=".*", right="a folder"
    )
    device: str = option(
        "auto",
        "where the model runs: auto, cpu, cuda or cuda:N",
        pattern=r"auto|cpu|cuda(:[0-9]+)?",
        right="auto, cpu, cuda or cuda:N",
    )
    devices: int = option(1, "devices that share the model, each holding a part of it", least=1, most=64)
    dtype: Dtype = option("auto", "precision of weights and cache; auto chooses by the device")
    weights: Weights = option(
        "auto",
        "width of the weights on a CPU; auto takes a GGUF file's own, q8 for a small one, and else f32",
    )
    attention: Attention = option(
        "auto", "what reads the KV cache; auto takes triton on a CUDA device, else sdpa"
    )
    exact: Exactness = option(
        "auto",
        "whether a stream's tokens are the same in any company; auto tries it on a CPU, on insists, anywhere",
    )
    drafts: Drafts = option(
        "auto",
        "whether tokens that may come are computed together with the one that does; auto where it pays",
    )
    draft_model: str = option(
        "",
        "small model of the same vocabulary that drafts, on a CPU: a local folder, a GGUF file or a hub id",
        pattern=".*",
        right="a local folder, a GGUF file or a hub id",
    )
    threads: int = option(0, "CPU threads of the engine; 0 chooses by the machine", most=1024)
    context: int = option(0, "most tokens of a stream, prompt and output together; 0 takes the model's own")
    kv_tokens: int = option(0, "tokens that the KV cache holds; 0 chooses by the memory")
    gpu_memory_fraction: float = option(
        0.9,
        "share of a CUDA device's memory that weights, steps and the KV cache may take",
        least=0.1,
        most=1,
    )
    kv_idle_s: float = option(
        240.0,
        "seconds after which memory that the KV cache does not use goes back, where it is the host's",
        least=1,
        most=DAY_S,
    )
    host_kv_gib: float = option(
        8.0,
        "GiB of the host's memory for what paused streams hold on a CUDA device; 0 takes none",
        most=65536,
    )
    block_size: int = option(16, "tokens of a block of the KV cache", least=1, most=1024)
    step_tokens: int = option(
        0, "most tokens that one step computes, prompts included; 0 chooses by the device"
    )
    batch_rows: int = option(
        256, "most streams that are decoded in one step; others take turns", least=1, most=65536
    )
    max_streams: int = option(4096, "most unfinished streams of the server; more are refused", least=1)
    toy_step_ms: float = option(0.0, "milliseconds that a step of the toy model takes at least", most=60_000)
    log_level: LogLevel = option("info", "least severe message that is logged")
    log_format: LogFormat = option("console", "how the log is written: lines for people, or JSON objects")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ModelOptions):
    """Of the command `midstream serve`."""

    host: str = option(
        "127.0.0.1",
        "address to listen on",
        pattern=HOST,
        right="an address such as 127.0.0.1 or ::1, or a host name, without brackets and port",
    )
    port: int = option(8000, "port to listen on; 0 takes a free one", most=65535)
    gateways: int = option(
        1, "gateways at this port, each a process of its own that serves any connection", least=1, most=64
    )
    address_file: str = option(
        "",
        "file into which the address is written once it serves",
        pattern=".*",
        right="a file",
    )
    share_port: bool = option(
        False, "let other servers of this user listen on the same port: the system divides connections"
    )
    own_port: int = option(
        0,
        "port of its own that the first gateway has beside --port; the next ports are the others'",
        most=65535,
    )
    tool_format: str = option(
        AUTO,
        "how the model spells tool calls, by its name in docs/tools.md; auto finds it in the chat template",
        pattern="|".join([AUTO, *BY_NAME]),
        right=f"{AUTO} or one of {', '.join(BY_NAME)}",
    )
    models: str = option(
        "",
        "file of the models to serve, in place of --model; see docs/operations.md",
        pattern=".*",
        right="a file",
    )
    engine: EnginePlace = option(
        "process", "where the engine runs: in a child process, or in a thread of the server"
    )
    engines: int = option(
        1, "engines, each with the whole model, among which streams are divided", least=1, most=64
    )
    engine_spare: Switch = option(
        "on", "whether another engine process stands ready, without a model, for when this one dies"
    )
    fleet: FleetKind = option(
        "embedded",
        "whose engines are used: the server's own, static for those of --engine-addresses, ray for --ray's",
    )
    ray: str = option(
        "",
        "address of Ray's GCS, whose `midstream fleet` keeps the engines",
        pattern=f"({HOST_AND_PORT})?",
        right="HOST:PORT, such as 10.0.0.7:6379",
    )
    engine_addresses: str = option(
        "",
        "engines that listen, as [grpc:][tls:]HOST:PORT or unix:PATH, with spaces between",
        pattern=ADDRESSES,
        right="addresses such as 10.0.0.7:7000, tls:gpu1:7000 or unix:/run/engine, with spaces between",
    )
    engine_addresses_file: str = option(
        "",
        "file of such addresses, one a line, which is read again when it changes; where Ray's are written",
        pattern=".*",
        right="a file",
    )
    engine_token_file: str = option(
        "", "file of the token that those engines ask for", pattern=".*", right="a file"
    )
    engine_ca_file: str = option(
        "",
        "file of the certificates by which engines at tls: addresses are known; else those of the machine",
        pattern=".*",
        right="a file",
    )
    engine_cert_file: str = option(
        "", "file of a certificate for engines that ask for one", pattern=".*", right="a file"
    )
    engine_key_file: str = option("", "file of its private key", pattern=".*", right="a file")
    engine_silence_s: float = option(
        30.0, "seconds of silence after which an engine process is taken for hung", least=0.2, most=DAY_S
    )
    max_connections: int = option(1000, "most open connections; more are refused", least=1)
    connections_per_address: int = option(
        0, "most open connections from one address; 0 sets no bound beside --max-connections"
    )
    streams_per_connection: int = option(1000, "most unfinished streams of one connection", least=1)
    max_grace_s: float = option(
        3600.0,
        "most seconds that a stream may wait for a listener; a start that asks for more is refused",
        most=DAY_S,
    )
    max_timeout_s: float = option(
        float(DAY_S),
        "seconds after which any stream ends; a start may ask for fewer, and is refused if it asks for more",
        least=1,
        most=DAY_S,
    )
    total_stream_memory_mib: int = option(
        2048, "MiB that the server holds for the streams of all connections together", least=1
    )
    stream_memory_mib: int = option(
        28, "MiB that the server holds for the streams of one connection, or of a tenant without one", least=1
    )
    keys_file: str = option(
        "",
        "file of the keys that may connect, made by `midstream keys`; without one nobody needs a key",
        pattern=".*",
        right="a file",
    )
    insecure_open: bool = option(
        False, "listen beyond this machine without keys: whoever reaches the port may use it"
    )
    allowed_origins: str = option(
        "",
        "other origins whose pages may connect, such as https://app.example, with spaces between",
        pattern=ORIGINS,
        right="origins as browsers say them, such as https://app.example: in small letters, without a port"
        " that is the scheme's own, with spaces between",
    )
    allowed_hosts: str = option(
        "",
        "names, beside addresses and localhost, by which a server without keys may be called",
        pattern=HOSTS,
        right="names such as llm.example, without a port, with spaces between",
    )
    max_message_bytes: int = option(
        2**20, "bytes of the largest message a client may send", least=1024, most=2**30
    )
    auto_credit_window: int = option(
        64, "tokens decoded ahead of a reader that sends no credit frames", least=1
    )
    ack_every: int = option(16, "tokens between two pings that ask how far a reader has come", least=1)
    send_timeout_s: float = option(
        20.0, "seconds after which a client that takes nothing is cut off", least=0.1, most=DAY_S
    )
    sse_heartbeat_s: float = option(
        15.0, "seconds of silence after which a streaming HTTP answer has a comment", least=0.05, most=DAY_S
    )
    handshake_timeout_s: float = option(
        5.0, "seconds that a request's head has to arrive in", least=0.1, most=DAY_S
    )
    shutdown_grace_s: float = option(
        10.0, "seconds that running streams have to finish on SIGTERM", most=DAY_S
    )
    on_drain: Draining = option(
        "hand-over",
        "what becomes of streams on SIGTERM with --fleet static or ray: hand-over leaves them to other"
        " servers at once, finish has them finish here",
    )
    event_loop: EventLoop = option(
        "asyncio", "what the server's events come from: Python's own loop, or uvloop, where it is installed"
    )
    metrics: Switch = option("on", "whether anything is counted, and told at /metrics")
    traces: Switch = option(
        "off", "whether traces are sent by OTLP, to where the variables OTEL_EXPORTER_OTLP_* say"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListenOptions(ModelOptions):
    """Of the command `midstream engine`."""

    listen: str = option(
        "127.0.0.1:7000",
        "where gateways connect: HOST:PORT, grpc:HOST:PORT for gRPC, or unix:PATH",
        pattern=LISTEN,
        right="HOST:PORT, grpc:HOST:PORT or unix:PATH",
    )
    token_file: str = option(
        "",
        "file of the token that gateways must show; for HOST:PORT there must be one",
        pattern=".*",
        right="a file",
    )
    address_file: str = option(
        "",
        "file into which its address is written once gateways may join",
        pattern=".*",
        right="a file",
    )
    tls_cert_file: str = option(
        "", "file of a certificate: connections are encrypted", pattern=".*", right="a file"
    )
    tls_key_file: str = option("", "file of its private key", pattern=".*", right="a file")
    tls_ca_file: str = option(
        "",
        "file of the certificates of which gateways must show one, or one that they signed",
        pattern=".*",
        right="a file",
    )
    engine_silence_s: float = option(
        30.0,
        "seconds of silence after which gateways take it for hung; after twice as many it ends itself",
        least=0.2,
        most=DAY_S,
    )


class _Option:
    """One option, as the command line and the environment see it."""

    def __init__(self, field: dataclasses.Field[Any], kind: Any) -> None:
        self.name = field.name
        self.flag = "--" + field.name.replace("_", "-")
        self.variable = PREFIX + field.name.upper()
        self.kind = kind
        self.default = field.default
        self.rule = field.metadata

    @property
    def right(self) -> str:
        if choices := get_args(self.kind):
            return f"one of {', '.join(choices)}"
        if self.kind is bool:
            return "true or false"
        if self.kind is str:
            return str(self.rule["right"])
        number = "a whole number" if self.kind is int else "a number"
        return f"{number} from {self.rule['least']} to {self.rule['most']}"

    @property
    def metavar(self) -> str:
        if choices := get_args(self.kind):
            return "{" + ",".join(choices) + "}"
        if self.kind is bool:
            return "BOOL"
        return "N" if self.kind is int else self.name.rpartition("_")[2].upper()

    @property
    def help(self) -> str:
        default = f" (default {self.default})" if self.default != "" else ""
        return f"{self.rule['purpose']}{default} [{self.variable}]"

    def read(self, text: str) -> Any:
        """The value that `text` spells; ValueError if it spells none, or one that is not right."""
        value = msgspec.convert(text, self.kind, strict=False)
        if isinstance(value, bool):
            right: Any = True
        elif isinstance(value, str):
            # A file of models may spell what no process can be told.
            right = "\0" not in value and (get_args(self.kind) or re.fullmatch(self.rule["pattern"], value))
        else:
            right = self.rule["least"] <= value <= self.rule["most"]
        if not right:
            raise ValueError(text)
        return value


def _rows(of: type[ModelOptions]) -> list[_Option]:
    kinds = get_type_hints(of)
    return [_Option(field, kinds[field.name]) for field in dataclasses.fields(of)]


_SERVE, _ENGINE = _rows(Options), _rows(ListenOptions)
# Of those that engines are made by, what is one's for the whole server.
_OF_THE_SERVER = {"model", "model_name", "adapter", "max_streams", "log_level", "log_format"}
_OF_A_MODEL = {
    row.name: row
    for row in _SERVE
    if row.name in {*get_type_hints(ModelOptions), "tool_format"} - _OF_THE_SERVER
}


def option_of_a_model(name: str) -> _Option | None:
    """That one model may have otherwise than others of its server."""
    return _OF_A_MODEL.get(name)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """The command line wins over the environment, and that over the default.

    What is not right is said in a line that names option, value and what would be right, with exit status 2.
    """
    parser = _parser("serve", "Serve a language model at ws://HOST:PORT/v1/realtime.", _SERVE)
    options = Options(**_values(parser, _SERVE, argv, environ))
    if problem := _contradiction(options):
        parser.error(problem)
    return options


def spelled(options: ModelOptions) -> list[str]:
    """As a command line: what is otherwise than by default."""
    rows = _ENGINE if isinstance(options, ListenOptions) else _SERVE
    values = ((row, getattr(options, row.name)) for row in rows)
    return [f"{row.flag}={value}" for row, value in values if value != row.default]


def parse_listening(argv: Sequence[str], environ: Mapping[str, str]) -> ListenOptions:
    """In the same way."""
    parser = _parser("engine", "Compute a language model for gateways that connect.", _ENGINE)
    options = ListenOptions(**_values(parser, _ENGINE, argv, environ))
    if problem := _open_to_all(options):
        parser.error(problem)
    return options


def _values(
    parser: ArgumentParser, rows: list[_Option], argv: Sequence[str], environ: Mapping[str, str]
) -> dict[str, Any]:
    given = vars(parser.parse_args(argv))
    values = {}
    for row in rows:
        if row.name in given:
            source, text = row.flag, given[row.name]
        elif environ.get(row.variable):
            source, text = row.variable, environ[row.variable]
        else:
            continue
        try:
            values[row.name] = row.read(text)
        except ValueError:  # msgspec's ValidationError is one
            parser.error(f"{source} is {text!r}; it must be {row.right}")
    return values


def unknown_variables(environ: Mapping[str, str], command: str = "serve") -> list[str]:
    """A sentence for each variable that looks like one of ours and is none, as whoever gave this command may
    have meant it. It repeats no value, which may be a secret."""
    known = {row.variable for row in (*_SERVE, *_ENGINE)} | {*OF_CLIENTS}
    strange = [name for name in sorted(environ) if name.startswith(PREFIX) and name not in known]
    return [_unknown(name, command) for name in strange]


def _unknown(name: str, command: str) -> str:
    rows, whose = (_ENGINE, "engine") if command == "engine" else (_SERVE, "server")
    near = get_close_matches(name.removeprefix(PREFIX), [row.name.upper() for row in rows], 1)
    right = f"is {PREFIX}{near[0]} meant?" if near else f"`midstream {command} --help` lists those that are"
    return f"the environment variable {name} is none of this {whose}'s, and changes nothing: {right}"


def _contradiction(options: Options) -> str | None:
    found = (
        look(options) for look in (_open_to_strangers, _numbers_at_odds, _said_by_the_file, _engines_at_odds)
    )
    return next(filter(None, found), None)


def _open_to_strangers(options: Options) -> str | None:
    if not (options.keys_file or options.insecure_open or _is_loopback(options.host)):
        return (
            f"--host is {options.host}, which others can reach, and there are no keys: give --keys-file (see"
            " `midstream keys add --help`), or --insecure-open if whoever reaches the port may use it"
        )
    return None


def _numbers_at_odds(options: Options) -> str | None:
    if options.ack_every > options.auto_credit_window:
        return (
            f"--ack-every is {options.ack_every}; it must be at most --auto-credit-window, which is"
            f" {options.auto_credit_window}: a reader would be stopped before it is asked how far it has come"
        )
    if options.engines > 1 and options.engine == "thread":
        return (
            f"--engines is {options.engines}; with --engine thread it must be 1: a thread cannot be replaced"
        )
    if options.gateways > 1 and options.engine == "thread":
        return (
            f"--gateways is {options.gateways}; with --engine thread, which only one can have, it must be 1"
        )
    if options.own_port + options.gateways > 65536:
        return f"--own-port is {options.own_port}, and there are not {options.gateways} ports from there on"
    if options.own_port and options.own_port <= options.port < options.own_port + options.gateways:
        return (
            f"--port is {options.port}, and so is one of the {options.gateways} from --own-port"
            f" {options.own_port} on: a gateway's own port is another"
        )
    return None


def _said_by_the_file(options: Options) -> str | None:
    if options.models and (options.engines > 1 or options.engine == "thread"):
        return (
            "--models goes with engines in processes, and says in the file how many of each there are: leave"
            " --engines and --engine out"
        )
    if options.models and (options.model != Options.model or options.model_name or options.adapter):
        return (
            "--models says in the file which models there are, their names and their adapters: leave --model,"
            " --model-name and --adapter out"
        )
    return None


def _engines_at_odds(options: Options) -> str | None:
    if (options.fleet == "ray") != bool(options.ray) or (options.ray and options.engine_addresses):
        return (
            "--fleet ray and --ray belong together, and say where all engines are: give both and no"
            " --engine-addresses, or neither"
        )
    addresses = bool(options.engine_addresses or options.engine_addresses_file)
    if options.fleet != "ray" and (options.fleet == "static") != addresses:
        return (
            "--fleet static and --engine-addresses (or --engine-addresses-file) belong together: give both,"
            " or neither"
        )
    if bool(options.engine_cert_file) != bool(options.engine_key_file):
        return "--engine-cert-file and --engine-key-file belong together: give both, or neither"
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _open_to_all(options: ListenOptions) -> str | None:
    if not options.token_file and not options.listen.startswith("unix:"):
        return (
            f"--listen is {options.listen}, where anybody could have tokens computed: give --token-file,"
            " a file with a secret that gateways have too (--engine-token-file)"
        )
    if bool(options.tls_cert_file) != bool(options.tls_key_file):
        return "--tls-cert-file and --tls-key-file belong together: give both, or neither"
    if options.tls_ca_file and not options.tls_cert_file:
        return "--tls-ca-file is about encrypted connections: give --tls-cert-file and --tls-key-file too"
    if options.tls_cert_file and options.listen.startswith("unix:"):
        return f"--listen is {options.listen}, where nothing is encrypted: --tls-cert-file is for HOST:PORT"
    return None


def _parser(command: str, what: str, rows: list[_Option]) -> ArgumentParser:
    parser = ArgumentParser(
        prog=f"midstream {command}",
        usage=f"midstream {command} [options]",
        description=what,
        epilog="The name in brackets is the environment variable that means the same; the command line wins.",
        argument_default=SUPPRESS,
        allow_abbrev=False,
    )
    for row in rows:
        spelling: dict[str, Any] = {"nargs": "?", "const": "true"} if row.kind is bool else {}
        parser.add_argument(row.flag, metavar=row.metavar, help=row.help, **spelling)
    return parser
