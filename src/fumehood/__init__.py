"""fumehood runs code that nobody has read yet: live, isolated Python in milliseconds.

This file is the facade: names only. Each is loaded from its module when it is first used, so that importing
the package does nothing. Whatever is not in `__all__` is private.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fumehood.advice.findings import Finding, Findings
    from fumehood.advice.scan import scan
    from fumehood.advice.wrapping import WrappedOutput, output_instructions, wrap_output
    from fumehood.audit.entries import AuditEntry, AuditHead, AuditLog, ChainFault
    from fumehood.backends.base import Backend
    from fumehood.changes import ChangedFile, Changes, Transaction, VariableChange
    from fumehood.charts import (
        Bar,
        BarChart,
        Box,
        BoxAndWhiskerChart,
        Chart,
        LineChart,
        PieChart,
        PieSlice,
        PointSeries,
        ScatterChart,
        SuperChart,
        UnknownChart,
    )
    from fumehood.checkpoint_errors import (
        CheckpointError,
        CheckpointLostError,
        CheckpointNotFoundError,
        CheckpointUnavailableError,
    )
    from fumehood.errors import (
        CapacityError,
        CommandError,
        CommandExitError,
        CommandStartError,
        CommandTimeoutError,
        ContextNotFoundError,
        DiskFullError,
        FileError,
        FileTooLargeError,
        FumehoodError,
        InvalidArgumentError,
        IsolationUnavailableError,
        PathExistsError,
        PathIsDirectoryError,
        PathNotDirectoryError,
        PathNotFoundError,
        PathNotTextError,
        PathPermissionError,
        PortClosedError,
        ProcessNotFoundError,
        ProtocolViolationError,
        SandboxClosedError,
        SandboxError,
        SandboxNotFoundError,
        SandboxNotStartedError,
        SandboxPausedError,
        SandboxStartError,
        TemplateError,
        TemplateStoreError,
        WrongProcessError,
    )
    from fumehood.events import (
        ClearOutputEvent,
        CommEvent,
        CommitRequestEvent,
        ErrorEvent,
        Event,
        ExecutionFinished,
        ExecutionStarted,
        InputRequestEvent,
        ResultEvent,
        StderrEvent,
        StdoutEvent,
        ToolCallEvent,
    )
    from fumehood.execution import (
        Execution,
        ExecutionError,
        LogEntry,
        Logs,
        ToolOutcome,
    )
    from fumehood.facade.aio import AsyncSandbox
    from fumehood.facade.command_handle import AsyncCommandHandle, CommandHandle
    from fumehood.facade.commands import AsyncCommands, Commands
    from fumehood.facade.exploring import AsyncBranches, Branch, Branches, aexplore, explore
    from fumehood.facade.filesystem import (
        AsyncFilesystem,
        AsyncWatch,
        Filesystem,
        Watch,
        WriteEntry,
    )
    from fumehood.facade.oneshot import arun_code, run_code
    from fumehood.facade.pty import (
        AsyncPty,
        AsyncPtyHandle,
        Pty,
        PtyHandle,
    )
    from fumehood.facade.sandbox import Sandbox
    from fumehood.facade.saving import read_saved, read_saved_record
    from fumehood.facade.tools import HostTool, ToolCall, ToolError
    from fumehood.fork_errors import ForkDepthError, ForkError, ForkUnavailableError
    from fumehood.judging import CaseResult, CaseRun
    from fumehood.limits import Limits, Usage
    from fumehood.models import (
        CheckpointInfo,
        CommandResult,
        ContextInfo,
        FileChange,
        FileInfo,
        Isolation,
        Layer,
        Metrics,
        PauseReport,
        ProcessInfo,
        SandboxInfo,
        Truncation,
    )
    from fumehood.network import EgressRecord, Network
    from fumehood.notebook.comparing import CellComparison, Difference
    from fumehood.notebook.determinism import Determinism
    from fumehood.notebook.replaying import ReplayReport, areplay, replay
    from fumehood.notebook.writing import write_record
    from fumehood.record import Record, RecordedCell
    from fumehood.results import Result
    from fumehood.save_errors import LoadError, SavedStateDamagedError, SavedStateVersionError, SaveError
    from fumehood.saved_state import LeftOut, LoadReport, SaveReport
    from fumehood.security import SecurityEvent, SecurityRule
    from fumehood.service_errors import (
        BadGatewayError,
        BlobNotFoundError,
        ForbiddenError,
        HostUnavailableError,
        IdempotencyConflictError,
        KeyNotFoundError,
        LimitForbiddenError,
        NetworkForbiddenError,
        NoHostNameError,
        OverloadedError,
        QueueTimeoutError,
        QuotaError,
        RequestTooLargeError,
        ServerEndingError,
        ServiceError,
        SlowReaderError,
        StorageError,
        StorageStartError,
        StorageVersionError,
        UnauthenticatedError,
    )
    from fumehood.storage.artifact_files import PublishedFile
    from fumehood.storage.artifacts import ArtifactStore, AsyncArtifactStore
    from fumehood.storage.signed_files import AsyncSignedFiles, SignedFiles
    from fumehood.templates.store import TemplateInfo
    from fumehood.templates.template import Template
    from fumehood.templates.verbs import build_template, list_templates, remove_template

__all__ = [
    "ArtifactStore",
    "AsyncArtifactStore",
    "AsyncBranches",
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncFilesystem",
    "AsyncPty",
    "AsyncPtyHandle",
    "AsyncSandbox",
    "AsyncSignedFiles",
    "AsyncWatch",
    "AuditEntry",
    "AuditHead",
    "AuditLog",
    "Backend",
    "BadGatewayError",
    "Bar",
    "BarChart",
    "BlobNotFoundError",
    "Box",
    "BoxAndWhiskerChart",
    "Branch",
    "Branches",
    "CapacityError",
    "CaseResult",
    "CaseRun",
    "CellComparison",
    "ChainFault",
    "ChangedFile",
    "Changes",
    "Chart",
    "CheckpointError",
    "CheckpointInfo",
    "CheckpointLostError",
    "CheckpointNotFoundError",
    "CheckpointUnavailableError",
    "ClearOutputEvent",
    "CommEvent",
    "CommandError",
    "CommandExitError",
    "CommandHandle",
    "CommandResult",
    "CommandStartError",
    "CommandTimeoutError",
    "Commands",
    "CommitRequestEvent",
    "ContextInfo",
    "ContextNotFoundError",
    "Determinism",
    "Difference",
    "DiskFullError",
    "EgressRecord",
    "ErrorEvent",
    "Event",
    "Execution",
    "ExecutionError",
    "ExecutionFinished",
    "ExecutionStarted",
    "FileChange",
    "FileError",
    "FileInfo",
    "FileTooLargeError",
    "Filesystem",
    "Finding",
    "Findings",
    "ForbiddenError",
    "ForkDepthError",
    "ForkError",
    "ForkUnavailableError",
    "FumehoodError",
    "HostTool",
    "HostUnavailableError",
    "IdempotencyConflictError",
    "InputRequestEvent",
    "InvalidArgumentError",
    "Isolation",
    "IsolationUnavailableError",
    "KeyNotFoundError",
    "Layer",
    "LeftOut",
    "LimitForbiddenError",
    "Limits",
    "LineChart",
    "LoadError",
    "LoadReport",
    "LogEntry",
    "Logs",
    "Metrics",
    "Network",
    "NetworkForbiddenError",
    "NoHostNameError",
    "OverloadedError",
    "PathExistsError",
    "PathIsDirectoryError",
    "PathNotDirectoryError",
    "PathNotFoundError",
    "PathNotTextError",
    "PathPermissionError",
    "PauseReport",
    "PieChart",
    "PieSlice",
    "PointSeries",
    "PortClosedError",
    "ProcessInfo",
    "ProcessNotFoundError",
    "ProtocolViolationError",
    "Pty",
    "PtyHandle",
    "PublishedFile",
    "QueueTimeoutError",
    "QuotaError",
    "Record",
    "RecordedCell",
    "ReplayReport",
    "RequestTooLargeError",
    "Result",
    "ResultEvent",
    "Sandbox",
    "SandboxClosedError",
    "SandboxError",
    "SandboxInfo",
    "SandboxNotFoundError",
    "SandboxNotStartedError",
    "SandboxPausedError",
    "SandboxStartError",
    "SaveError",
    "SaveReport",
    "SavedStateDamagedError",
    "SavedStateVersionError",
    "ScatterChart",
    "SecurityEvent",
    "SecurityRule",
    "ServerEndingError",
    "ServiceError",
    "SignedFiles",
    "SlowReaderError",
    "StderrEvent",
    "StdoutEvent",
    "StorageError",
    "StorageStartError",
    "StorageVersionError",
    "SuperChart",
    "Template",
    "TemplateError",
    "TemplateInfo",
    "TemplateStoreError",
    "ToolCall",
    "ToolCallEvent",
    "ToolError",
    "ToolOutcome",
    "Transaction",
    "Truncation",
    "UnauthenticatedError",
    "UnknownChart",
    "Usage",
    "VariableChange",
    "Watch",
    "WrappedOutput",
    "WriteEntry",
    "WrongProcessError",
    "aexplore",
    "areplay",
    "arun_code",
    "build_template",
    "explore",
    "list_templates",
    "output_instructions",
    "read_saved",
    "read_saved_record",
    "remove_template",
    "replay",
    "run_code",
    "scan",
    "wrap_output",
    "write_record",
]

# The public names by the module that defines them.
_HOMES = {
    "advice.findings": "Finding Findings",
    "advice.scan": "scan",
    "advice.wrapping": "WrappedOutput output_instructions wrap_output",
    "facade.aio": "AsyncSandbox",
    "audit.entries": "AuditEntry AuditHead AuditLog ChainFault",
    "backends.base": "Backend",
    "changes": "ChangedFile Changes Transaction VariableChange",
    "charts": """
        Bar BarChart Box BoxAndWhiskerChart Chart LineChart PieChart PieSlice PointSeries
        ScatterChart SuperChart UnknownChart
    """,
    "checkpoint_errors": "CheckpointError CheckpointLostError CheckpointNotFoundError CheckpointUnavailableError",
    "facade.command_handle": "AsyncCommandHandle CommandHandle",
    "facade.commands": "AsyncCommands Commands",
    "errors": """
        CapacityError CommandError CommandExitError CommandStartError CommandTimeoutError
        ContextNotFoundError DiskFullError FileError FileTooLargeError FumehoodError
        InvalidArgumentError IsolationUnavailableError PathExistsError PathIsDirectoryError
        PathNotDirectoryError PathNotFoundError PathNotTextError PathPermissionError
        PortClosedError ProcessNotFoundError ProtocolViolationError SandboxClosedError SandboxError
        SandboxNotFoundError SandboxNotStartedError SandboxPausedError SandboxStartError TemplateError
        TemplateStoreError WrongProcessError
    """,
    "events": """
        ClearOutputEvent CommEvent CommitRequestEvent ErrorEvent Event ExecutionFinished ExecutionStarted
        InputRequestEvent ResultEvent StderrEvent StdoutEvent ToolCallEvent
    """,
    "execution": "Execution ExecutionError LogEntry Logs ToolOutcome",
    "facade.exploring": "AsyncBranches Branch Branches aexplore explore",
    "facade.filesystem": "AsyncFilesystem AsyncWatch Filesystem Watch WriteEntry",
    "fork_errors": "ForkDepthError ForkError ForkUnavailableError",
    "judging": "CaseResult CaseRun",
    "limits": "Limits Usage",
    "models": """
        CheckpointInfo CommandResult ContextInfo FileChange FileInfo Isolation Layer Metrics PauseReport ProcessInfo
        SandboxInfo Truncation
    """,
    "network": "EgressRecord Network",
    "notebook.comparing": "CellComparison Difference",
    "notebook.determinism": "Determinism",
    "notebook.replaying": "ReplayReport areplay replay",
    "notebook.writing": "write_record",
    "facade.oneshot": "arun_code run_code",
    "facade.pty": "AsyncPty AsyncPtyHandle Pty PtyHandle",
    "record": "Record RecordedCell",
    "results": "Result",
    "facade.sandbox": "Sandbox",
    "save_errors": "LoadError SaveError SavedStateDamagedError SavedStateVersionError",
    "saved_state": "LeftOut LoadReport SaveReport",
    "facade.saving": "read_saved read_saved_record",
    "security": "SecurityEvent SecurityRule",
    "service_errors": """
        BadGatewayError BlobNotFoundError ForbiddenError HostUnavailableError
        IdempotencyConflictError KeyNotFoundError LimitForbiddenError NetworkForbiddenError
        NoHostNameError OverloadedError QueueTimeoutError QuotaError RequestTooLargeError ServerEndingError ServiceError
        SlowReaderError StorageError StorageStartError StorageVersionError UnauthenticatedError
    """,
    "storage.artifact_files": "PublishedFile",
    "storage.artifacts": "ArtifactStore AsyncArtifactStore",
    "storage.signed_files": "AsyncSignedFiles SignedFiles",
    "templates.store": "TemplateInfo",
    "templates.template": "Template",
    "templates.verbs": "build_template list_templates remove_template",
    "facade.tools": "HostTool ToolCall ToolError",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    home = next(module for module, names in _HOMES.items() if name in names.split())
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
