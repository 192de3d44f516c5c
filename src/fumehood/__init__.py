"""Run untrusted (LLM-written) code in a local sandbox that starts in milliseconds.

This file has the public names only. Each is loaded from its module when it is first used, so that importing
the package does nothing. Whatever is not in `__all__` is private.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fumehood.advice.findings import Finding, Findings
    from fumehood.advice.scan import scan
    from fumehood.advice.wrapped_output import WrappedOutput, output_instructions, wrap_output
    from fumehood.api.activity import AsyncActivity
    from fumehood.api.async_sandbox import AsyncSandbox
    from fumehood.api.commands import AsyncCommandHandle, AsyncCommands
    from fumehood.api.explore import AsyncBranches, Branch, Branches, aexplore, explore
    from fumehood.api.files import AsyncFilesystem, AsyncWatch, WriteEntry
    from fumehood.api.many import Run, RunOutcome, arun_many, run_many
    from fumehood.api.notebooks import Determinism, ReplayReport, areplay, replay
    from fumehood.api.one_shot import arun_code, run_code
    from fumehood.api.pty import AsyncPty, AsyncPtyHandle
    from fumehood.api.records import AsyncRecords
    from fumehood.api.sandbox import (
        Activity,
        CommandHandle,
        Commands,
        Filesystem,
        Pty,
        PtyHandle,
        Records,
        Sandbox,
        Shares,
        Watch,
    )
    from fumehood.api.saved_states import read_saved, read_saved_record
    from fumehood.api.server_audit import read_server_audit
    from fumehood.api.shares import AsyncShares
    from fumehood.api.templates import build_template, list_templates, prune_templates, remove_template
    from fumehood.api.tools import HostTool, ToolCall, ToolError
    from fumehood.errors import (
        BadGatewayError,
        BatchLinesLostError,
        BatchNotFoundError,
        BatchTakenOverError,
        BlobNotFoundError,
        CapacityError,
        CheckpointError,
        CheckpointLostError,
        CheckpointNotFoundError,
        CheckpointUnavailableError,
        CommandError,
        CommandExitError,
        CommandStartError,
        CommandTimeoutError,
        ContextNotFoundError,
        DiskFullError,
        DownloadError,
        ExecutionNotFoundError,
        FileError,
        FileTooLargeError,
        ForbiddenError,
        ForkDepthError,
        ForkError,
        ForkUnavailableError,
        FumehoodError,
        HostUnavailableError,
        HostVersionError,
        IdempotencyConflictError,
        ImageAccessError,
        ImageDamagedError,
        ImageError,
        ImageNotFoundError,
        ImagePlatformError,
        InvalidArgumentError,
        IsolationUnavailableError,
        KeyNotFoundError,
        LanguageCheckpointError,
        LanguageUnavailableError,
        LimitForbiddenError,
        LoadError,
        NetworkForbiddenError,
        NoHostNameError,
        OverloadedError,
        PathExistsError,
        PathIsDirectoryError,
        PathNotDirectoryError,
        PathNotFoundError,
        PathNotTextError,
        PathPermissionError,
        PortClosedError,
        ProcessNotFoundError,
        ProtocolViolationError,
        QueueTimeoutError,
        QuotaError,
        RateLimitError,
        RecordNotFoundError,
        RequestTooLargeError,
        SandboxClosedError,
        SandboxError,
        SandboxNotFoundError,
        SandboxNotStartedError,
        SandboxPausedError,
        SandboxStartError,
        SavedStateDamagedError,
        SavedStateVersionError,
        SaveError,
        ScreenshotError,
        ServerEndingError,
        ServiceError,
        SlowReaderError,
        StorageError,
        StorageStartError,
        StorageVersionError,
        TemplateError,
        TemplateStoreError,
        UnauthenticatedError,
        WrongProcessError,
    )
    from fumehood.ipython_magic import load_ipython_extension
    from fumehood.notebook.comparison import CellComparison, Difference
    from fumehood.notebook.record_file import write_record
    from fumehood.port.backend import Backend
    from fumehood.storage.artifacts import ArtifactStore, AsyncArtifactStore
    from fumehood.storage.signed_files import AsyncSignedFiles, SignedFiles
    from fumehood.templates.store import TemplateInfo
    from fumehood.values.audit import AuditEntry, AuditHead, AuditLog, ChainFault
    from fumehood.values.charts import (
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
    from fumehood.values.events import (
        ClearOutputEvent,
        CommEvent,
        CommitRequestEvent,
        ErrorEvent,
        Event,
        ExecutionFinished,
        ExecutionStarted,
        InputRequestEvent,
        Question,
        ResultEvent,
        StderrEvent,
        StdoutEvent,
        ToolCallEvent,
    )
    from fumehood.values.execution import (
        ChangedFile,
        Changes,
        Execution,
        ExecutionError,
        LogEntry,
        Logs,
        Record,
        RecordedCell,
        ToolOutcome,
        Transaction,
        VariableChange,
    )
    from fumehood.values.judging import CaseResult, CaseRun
    from fumehood.values.kept_records import EndedSandbox, KeptContext
    from fumehood.values.limits import Limits, Usage
    from fumehood.values.looking import (
        Cell,
        CellPage,
        ChangeCounts,
        CommandPage,
        CommandPiece,
        Family,
        ListeningPort,
        PartSummary,
        PendingInput,
        PortList,
        RanCommand,
        Relative,
        ResultSummary,
        SandboxUse,
        Variable,
        VariablePage,
    )
    from fumehood.values.moments import Comparison, Moment, VariableDifference
    from fumehood.values.network import EgressRecord, Network
    from fumehood.values.published_file import PublishedFile
    from fumehood.values.results import Result
    from fumehood.values.sandbox import (
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
    from fumehood.values.saved_state import LeftOut, LoadReport, SaveReport
    from fumehood.values.security import SecurityEvent, SecurityRule
    from fumehood.values.shares import Share
    from fumehood.values.start_command import StartCommand
    from fumehood.values.template import Template
    from fumehood.values.watching import WatchEvent

__all__ = [
    "Activity",
    "ArtifactStore",
    "AsyncActivity",
    "AsyncArtifactStore",
    "AsyncBranches",
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncFilesystem",
    "AsyncPty",
    "AsyncPtyHandle",
    "AsyncRecords",
    "AsyncSandbox",
    "AsyncShares",
    "AsyncSignedFiles",
    "AsyncWatch",
    "AuditEntry",
    "AuditHead",
    "AuditLog",
    "Backend",
    "BadGatewayError",
    "Bar",
    "BarChart",
    "BatchLinesLostError",
    "BatchNotFoundError",
    "BatchTakenOverError",
    "BlobNotFoundError",
    "Box",
    "BoxAndWhiskerChart",
    "Branch",
    "Branches",
    "CapacityError",
    "CaseResult",
    "CaseRun",
    "Cell",
    "CellComparison",
    "CellPage",
    "ChainFault",
    "ChangeCounts",
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
    "CommandPage",
    "CommandPiece",
    "CommandResult",
    "CommandStartError",
    "CommandTimeoutError",
    "Commands",
    "CommitRequestEvent",
    "Comparison",
    "ContextInfo",
    "ContextNotFoundError",
    "Determinism",
    "Difference",
    "DiskFullError",
    "DownloadError",
    "EgressRecord",
    "EndedSandbox",
    "ErrorEvent",
    "Event",
    "Execution",
    "ExecutionError",
    "ExecutionFinished",
    "ExecutionNotFoundError",
    "ExecutionStarted",
    "Family",
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
    "HostVersionError",
    "IdempotencyConflictError",
    "ImageAccessError",
    "ImageDamagedError",
    "ImageError",
    "ImageNotFoundError",
    "ImagePlatformError",
    "InputRequestEvent",
    "InvalidArgumentError",
    "Isolation",
    "IsolationUnavailableError",
    "KeptContext",
    "KeyNotFoundError",
    "LanguageCheckpointError",
    "LanguageUnavailableError",
    "Layer",
    "LeftOut",
    "LimitForbiddenError",
    "Limits",
    "LineChart",
    "ListeningPort",
    "LoadError",
    "LoadReport",
    "LogEntry",
    "Logs",
    "Metrics",
    "Moment",
    "Network",
    "NetworkForbiddenError",
    "NoHostNameError",
    "OverloadedError",
    "PartSummary",
    "PathExistsError",
    "PathIsDirectoryError",
    "PathNotDirectoryError",
    "PathNotFoundError",
    "PathNotTextError",
    "PathPermissionError",
    "PauseReport",
    "PendingInput",
    "PieChart",
    "PieSlice",
    "PointSeries",
    "PortClosedError",
    "PortList",
    "ProcessInfo",
    "ProcessNotFoundError",
    "ProtocolViolationError",
    "Pty",
    "PtyHandle",
    "PublishedFile",
    "Question",
    "QueueTimeoutError",
    "QuotaError",
    "RanCommand",
    "RateLimitError",
    "Record",
    "RecordNotFoundError",
    "RecordedCell",
    "Records",
    "Relative",
    "ReplayReport",
    "RequestTooLargeError",
    "Result",
    "ResultEvent",
    "ResultSummary",
    "Run",
    "RunOutcome",
    "Sandbox",
    "SandboxClosedError",
    "SandboxError",
    "SandboxInfo",
    "SandboxNotFoundError",
    "SandboxNotStartedError",
    "SandboxPausedError",
    "SandboxStartError",
    "SandboxUse",
    "SaveError",
    "SaveReport",
    "SavedStateDamagedError",
    "SavedStateVersionError",
    "ScatterChart",
    "ScreenshotError",
    "SecurityEvent",
    "SecurityRule",
    "ServerEndingError",
    "ServiceError",
    "Share",
    "Shares",
    "SignedFiles",
    "SlowReaderError",
    "StartCommand",
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
    "Variable",
    "VariableChange",
    "VariableDifference",
    "VariablePage",
    "Watch",
    "WatchEvent",
    "WrappedOutput",
    "WriteEntry",
    "WrongProcessError",
    "aexplore",
    "areplay",
    "arun_code",
    "arun_many",
    "build_template",
    "explore",
    "list_templates",
    "load_ipython_extension",
    "output_instructions",
    "prune_templates",
    "read_saved",
    "read_saved_record",
    "read_server_audit",
    "remove_template",
    "replay",
    "run_code",
    "run_many",
    "scan",
    "wrap_output",
    "write_record",
]

# The public names by the module that defines them.
_HOMES = {
    "advice.findings": "Finding Findings",
    "advice.scan": "scan",
    "advice.wrapped_output": "WrappedOutput output_instructions wrap_output",
    "api.async_sandbox": "AsyncSandbox",
    "api.commands": "AsyncCommandHandle AsyncCommands",
    "api.explore": "AsyncBranches Branch Branches aexplore explore",
    "api.files": "AsyncFilesystem AsyncWatch WriteEntry",
    "api.many": "Run RunOutcome arun_many run_many",
    "api.notebooks": "Determinism ReplayReport areplay replay",
    "api.one_shot": "arun_code run_code",
    "api.activity": "AsyncActivity",
    "api.server_audit": "read_server_audit",
    "api.records": "AsyncRecords",
    "api.shares": "AsyncShares",
    "api.pty": "AsyncPty AsyncPtyHandle",
    "api.sandbox": "Sandbox Activity Shares Records Filesystem Watch Commands CommandHandle Pty PtyHandle",
    "api.templates": "build_template list_templates prune_templates remove_template",
    "api.saved_states": "read_saved read_saved_record",
    "api.tools": "HostTool ToolCall ToolError",
    "errors": """
        CheckpointError CheckpointLostError CheckpointNotFoundError CheckpointUnavailableError CapacityError
        CommandError CommandExitError CommandStartError CommandTimeoutError ContextNotFoundError DiskFullError
        DownloadError ExecutionNotFoundError FileError FileTooLargeError FumehoodError InvalidArgumentError
        IsolationUnavailableError PathExistsError
        PathIsDirectoryError PathNotDirectoryError PathNotFoundError PathNotTextError PathPermissionError
        PortClosedError ProcessNotFoundError ProtocolViolationError RecordNotFoundError SandboxClosedError SandboxError
        SandboxNotFoundError SandboxNotStartedError SandboxPausedError SandboxStartError TemplateError
        TemplateStoreError WrongProcessError ForkDepthError ForkError ForkUnavailableError LoadError SaveError
        SavedStateDamagedError SavedStateVersionError BadGatewayError BatchLinesLostError BatchNotFoundError
        BatchTakenOverError BlobNotFoundError ForbiddenError
        HostUnavailableError HostVersionError
        IdempotencyConflictError KeyNotFoundError LimitForbiddenError NetworkForbiddenError
        LanguageCheckpointError LanguageUnavailableError ImageAccessError ImageDamagedError ImageError
        ImageNotFoundError ImagePlatformError
        NoHostNameError OverloadedError QueueTimeoutError QuotaError RateLimitError RequestTooLargeError
        ServerEndingError ServiceError SlowReaderError StorageError StorageStartError StorageVersionError
        UnauthenticatedError ScreenshotError
    """,
    "ipython_magic": "load_ipython_extension",
    "notebook.comparison": "CellComparison Difference",
    "notebook.record_file": "write_record",
    "port.backend": "Backend",
    "storage.artifacts": "ArtifactStore AsyncArtifactStore",
    "values.published_file": "PublishedFile",
    "storage.signed_files": "AsyncSignedFiles SignedFiles",
    "templates.store": "TemplateInfo",
    "values.audit": "AuditEntry AuditHead AuditLog ChainFault",
    "values.charts": """
        Bar BarChart Box BoxAndWhiskerChart Chart LineChart PieChart PieSlice PointSeries ScatterChart
        SuperChart UnknownChart
    """,
    "values.events": """
        ClearOutputEvent CommEvent CommitRequestEvent ErrorEvent Event ExecutionFinished ExecutionStarted
        InputRequestEvent Question ResultEvent StderrEvent StdoutEvent ToolCallEvent
    """,
    "values.execution": """
        ChangedFile Changes Transaction VariableChange Execution ExecutionError LogEntry Logs ToolOutcome Record
        RecordedCell
    """,
    "values.judging": "CaseResult CaseRun",
    "values.kept_records": "EndedSandbox KeptContext",
    "values.limits": "Limits Usage",
    "values.looking": """
        Cell CellPage ChangeCounts CommandPage CommandPiece Family ListeningPort PartSummary PendingInput PortList
        RanCommand Relative ResultSummary SandboxUse Variable VariablePage
    """,
    "values.moments": "Comparison Moment VariableDifference",
    "values.watching": "WatchEvent",
    "values.network": "EgressRecord Network",
    "values.results": "Result",
    "values.sandbox": """
        CheckpointInfo CommandResult ContextInfo FileChange FileInfo Isolation Layer Metrics PauseReport
        ProcessInfo SandboxInfo Truncation
    """,
    "values.saved_state": "LeftOut LoadReport SaveReport",
    "values.security": "SecurityEvent SecurityRule",
    "values.shares": "Share",
    "values.start_command": "StartCommand",
    "values.template": "Template",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        # With `name` and `obj`, Python adds the attribute that was probably meant.
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])

    home = next(module for module, names in _HOMES.items() if name in names.split())
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
