"""Where engines are to be had, by the server's options: in processes or a thread of its own, or at addresses
where they listen.

It makes links, and knows nothing of what goes through them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec import structs

from engine import api
from engine.model.names import check_name
from engine.model.preflight import ModelError
from realtime.certificates import CertificateError, Certificates
from realtime.config import ADDRESS, ModelOptions, Options
from realtime.endless_files import content_of, is_endless
from realtime.fleet.address import Address
from realtime.fleet.forked_spares import forked_spares
from realtime.fleet.models_file import ModelEntry
from realtime.fleet.place import NEEDS_GRPC, EnginePlace, PlaceError
from realtime.fleet.process_link import ProcessLink
from realtime.fleet.socket_link import SocketLink
from realtime.fleet.thread_link import ThreadLink
from realtime.fleet.watched_engine import Connect

TOY = "toy"  # of no file


def at_start(options: Options, models: Sequence[ModelEntry]) -> list[EnginePlace]:
    """Those that there are to begin with, or while a model is loaded."""
    if options.fleet != "embedded":
        _check_certificates(options)
        return listening(options)
    check_own(options, models)
    engines = sum(entry.replicas for entry in models)
    return [place for entry in models for place in _own_places(options, entry, engines)]


def check_own(options: Options, models: Sequence[ModelEntry]) -> None:
    """Of engines that a server runs itself there are as many as the file says, and what they are to load is
    on this machine, or may be at the hub."""
    for entry in models:
        check_names(entry.options, f'"{entry.name}": ' if options.models else "")
        if entry.scale is not None:
            raise PlaceError(
                f'"{entry.name}" is to have {entry.replicas} to {entry.scale.most} replicas, and only a fleet'
                f" that Ray keeps has more or fewer by itself: say replicas = {entry.replicas}"
            )


def check_names(options: ModelOptions, of: str = "") -> None:
    """An engine would say the same, once it has loaded its libraries. `of`: which model, in the sentence."""
    try:
        for name in filter(None, (options.model, options.adapter, options.draft_model)):
            if name != TOY:
                check_name(name)
    except ModelError as problem:
        raise PlaceError(f"the engine does not start: {of}{problem}") from None


def _own_places(options: Options, entry: ModelEntry, engines: int) -> Iterator[EnginePlace]:
    connect = _own(options, entry, engines)
    whose = f' of "{entry.name}"' if options.models else ""
    for number in range(entry.replicas):
        name = f"engine {number}{whose}" if entry.replicas > 1 else f"the engine{whose}"
        yield EnginePlace(name, connect, model=entry.name)


def wants_spare(options: Options) -> bool:
    return options.fleet == "embedded" and options.engine == "process" and options.engine_spare == "on"


def listening(options: Options) -> list[EnginePlace]:
    """Engines that others run, at the addresses that the options name and those in their file now."""
    if options.engine_addresses_file:  # these are read again and again
        _check_files(options.engine_addresses_file, options.engine_token_file)
    token = token_in(options.engine_token_file)
    certificates = _certificates(options)
    for file in filter(None, certificates):
        _check_there(file)
    listed = _lines(options.engine_addresses_file)
    for text in listed:
        if not re.fullmatch(ADDRESS, text):
            raise PlaceError(
                f"the file {options.engine_addresses_file} has {text!r}, which is no address:"
                " [grpc:][tls:]HOST:PORT or unix:PATH"
            )
    texts = [*options.engine_addresses.split(), *listed]
    return [
        EnginePlace(f"the engine at {text}", _listening(Address(text), token, certificates), ours=False)
        for text in dict.fromkeys(texts)
    ]


def _listening(address: Address, token: str, certificates: Certificates) -> Connect:
    if not address.is_grpc:
        return partial(SocketLink, address, token, certificates)
    if address.is_tls and not certificates.authorities:
        raise PlaceError(f"an engine at {address.text} is known by --engine-ca-file: give one")
    try:
        # It brings gRPC: only where it was asked for.
        from realtime.fleet.grpc_link import GrpcLink
    except ModuleNotFoundError:
        raise PlaceError(f"an engine at {address.text} {NEEDS_GRPC}") from None
    return partial(GrpcLink, address, token, certificates)


def token_in(file: str) -> str:
    token = " ".join(_lines(file))
    if file and not token:
        raise PlaceError(f"the file {file} holds no token")
    return token


def _certificates(options: Options) -> Certificates:
    return Certificates(options.engine_ca_file, options.engine_cert_file, options.engine_key_file)


def _check_certificates(options: Options) -> None:
    """Whether they are any. Those that are replaced later are named where they are used."""
    certificates = _certificates(options)
    for file in filter(None, certificates):
        _check_there(file)
    try:
        if any(certificates):
            certificates.of_a_gateway()
    except CertificateError as problem:
        raise PlaceError(str(problem)) from None


def _check_there(file: str) -> None:
    try:
        why = "" if Path(file).is_file() else "it is not there"
    except OSError as error:  # nobody may look into its folder
        why = error.strerror or str(error)
    if why:
        raise PlaceError(f"the file {file} of certificates cannot be read: {why}")


def _check_files(*files: str) -> None:
    for file in filter(None, files):
        if is_endless(Path(file)):
            raise PlaceError(f"the file {file} cannot be read: it is no file")


def _lines(file: str) -> list[str]:
    """Without comments."""
    if not file:
        return []
    try:
        lines = content_of(Path(file)).decode().splitlines()
    except OSError as error:
        raise PlaceError(f"the file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PlaceError(f"the file {file} cannot be read: it is no text") from None
    return [line for line in (line.partition("#")[0].strip() for line in lines) if line]


def model_name(options: ModelOptions) -> str:
    """By which clients ask for it."""
    return options.model_name or Path(options.model).name


def engine_options(options: ModelOptions) -> api.EngineOptions:
    return api.EngineOptions(
        model=options.model,
        name=model_name(options),
        adapter=options.adapter,
        device=options.device,
        devices=options.devices,
        dtype=options.dtype,
        weights=options.weights,
        attention=options.attention,
        exact=options.exact,
        drafts=options.drafts,
        draft_model=options.draft_model,
        threads=options.threads,
        kv_tokens=options.kv_tokens,
        gpu_memory_fraction=options.gpu_memory_fraction,
        kv_idle_s=options.kv_idle_s,
        host_kv_gib=options.host_kv_gib,
        block_size=options.block_size,
        step_tokens=options.step_tokens,
        batch_rows=options.batch_rows,
        max_streams=options.max_streams,
        context=options.context,
        toy_step_ms=options.toy_step_ms,
        log_level=options.log_level,
        log_format=options.log_format,
    )


def threads_each(engines: int) -> int:
    """Where engines share the machine; 0 leaves it to the only one."""
    return max(1, (os.cpu_count() or 1) // engines) if engines > 1 else 0


def _own(options: Options, entry: ModelEntry, engines: int) -> Connect:
    made_by = engine_options(entry.options)
    if engines > 1 and not entry.options.threads:
        made_by = structs.replace(made_by, threads=threads_each(engines))
    if options.engine == "thread":
        return lambda on_messages, on_closed: ThreadLink(made_by, on_messages, on_closed)
    spares = forked_spares() if wants_spare(options) else None
    return lambda on_messages, on_closed: ProcessLink(made_by, on_messages, on_closed, spares)
