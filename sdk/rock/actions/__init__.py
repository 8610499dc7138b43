"""The wire contract: what clients send and what the service answers, declared once, used by both sides.

    request = load(BashAction, body)      # BadRequest names every bad field
    answer = dump(BashObservation(output="hi", exit_code=0))

`schema_of(cls)` is the marshmallow schema of any class here.
"""

from __future__ import annotations

from rock.actions.codec import dump, load, parse, revive, schema_of
from rock.actions.envhub import EnvEntry, EnvNameRequest, GemSpec, ListEnvsRequest, RegisterEnvRequest
from rock.actions.forks import ForkRequest, ForkResponse
from rock.actions.gem import EnvListResponse, EnvResetResponse, EnvSandboxResponse, EnvStepResponse
from rock.actions.images import RemoveImageResponse, WarmupResponse
from rock.actions.nodes import NodeListResponse, NodeResponse
from rock.actions.permissions import ChmodRequest, ChownRequest
from rock.actions.requests import (
    BashAction,
    BatchRequest,
    CloseBashSessionRequest,
    Command,
    CommitRequest,
    CreateBashSessionRequest,
    EnvCloseRequest,
    EnvMakeRequest,
    EnvResetRequest,
    EnvStepRequest,
    ReadFileRequest,
    RemoveImageRequest,
    SandboxRequest,
    StartRequest,
    TerminalFrame,
    TerminalRequest,
    UploadForm,
    UploadRequest,
    WarmupRequest,
    WriteFileRequest,
)
from rock.actions.responses import (
    BashObservation,
    BatchResponse,
    CloseBashSessionResponse,
    CloseResponse,
    CommandResponse,
    CommitPhase,
    CommitStatusResponse,
    CreateBashSessionResponse,
    ExecuteBashSessionResponse,
    FileResponse,
    IsAliveResponse,
    OutputResponse,
    Phase,
    PhaseStatus,
    ReadFileResponse,
    ResponseStatus,
    SandboxListResponse,
    StartResponse,
    State,
    StateTransition,
    StatisticsResponse,
    StatusResponse,
    UnfinishedResponse,
    UploadResponse,
    WriteFileResponse,
)
from rock.actions.units import parse_disk, parse_memory, parse_size

# The names under which existing trainers import the same classes.
Action = BashAction
Observation = BashObservation
CreateSessionRequest = CreateBashSessionRequest
CreateSessionResponse = CreateBashSessionResponse
CloseSessionRequest = CloseBashSessionRequest
CloseSessionResponse = CloseBashSessionResponse
SandboxStatusResponse = StatusResponse
FileUploadResponse = UploadResponse

__all__ = [
    "Action", "BashAction", "BashObservation", "BatchRequest", "BatchResponse", "CloseBashSessionRequest", "CloseBashSessionResponse",
    "CloseResponse", "CloseSessionRequest", "CloseSessionResponse", "Command", "CommandResponse", "CommitPhase",
    "CommitRequest", "CommitStatusResponse", "CreateBashSessionRequest", "CreateBashSessionResponse",
    "CreateSessionRequest", "CreateSessionResponse", "EnvCloseRequest", "EnvEntry", "EnvMakeRequest", "EnvNameRequest", "EnvResetRequest",
    "EnvStepRequest", "ExecuteBashSessionResponse", "FileResponse", "FileUploadResponse", "ForkRequest", "ForkResponse", "IsAliveResponse", "ListEnvsRequest",
    "NodeListResponse", "NodeResponse",
    "Observation", "OutputResponse", "Phase", "PhaseStatus", "ReadFileRequest", "ReadFileResponse", "RegisterEnvRequest",
    "RemoveImageRequest", "RemoveImageResponse", "ResponseStatus", "SandboxListResponse", "SandboxRequest", "SandboxStatusResponse",
    "StartRequest", "StartResponse", "State", "StateTransition", "StatisticsResponse", "StatusResponse",
    "TerminalFrame", "TerminalRequest", "UnfinishedResponse", "UploadForm", "UploadRequest", "UploadResponse", "WarmupRequest", "WarmupResponse", "WriteFileRequest",
    "WriteFileResponse", "dump", "load", "parse", "parse_disk", "parse_memory", "parse_size", "revive", "schema_of",
    "ChmodRequest", "ChownRequest", "EnvListResponse", "EnvResetResponse", "EnvSandboxResponse", "EnvStepResponse", "GemSpec",
]  # fmt: skip
