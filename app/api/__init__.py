"""The HTTP surface, on one screen: every route, what it takes, what it answers, and which function does it."""

from app.api import ended, files, health, results, roster, sandboxes, sessions
from app.api.endpoint import PREFIX, Endpoint
from rock import actions

# method, path, request, response, view, what it is for
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", "/start", actions.StartRequest, actions.StartResponse, sandboxes.start,
             "Start a sandbox and wait until it is alive."),
    Endpoint("POST", "/start_async", actions.StartRequest, actions.StartResponse, sandboxes.start_async,
             "Start a sandbox and answer as soon as it is placed; poll get_status."),
    Endpoint("GET", "/is_alive", None, actions.IsAliveResponse, sandboxes.is_alive,
             "Tell whether a sandbox runs; an unknown one does not.", query=("sandbox_id",)),
    Endpoint("GET", "/get_status", None, actions.StatusResponse, sandboxes.get_status,
             "Tell all about a sandbox, the phases of its start included.", query=("sandbox_id", "include_all_states")),
    Endpoint("GET", "/get_sandbox_statistics", None, actions.StatisticsResponse, sandboxes.statistics,
             "Measure what a sandbox uses of its own limits.", query=("sandbox_id",)),
    Endpoint("POST", "/stop", actions.SandboxRequest, None, sandboxes.stop,
             "Stop a sandbox; stopping it again succeeds."),
    Endpoint("POST", "/restart", actions.SandboxRequest, actions.StartResponse, ended.restart,
             "Start a stopped sandbox again, with its container and files and without its sessions."),
    Endpoint("POST", "/sandboxes/<sandbox_id>/restart", None, actions.StartResponse, ended.restart_named,
             "The same, by path."),
    Endpoint("POST", "/delete", actions.SandboxRequest, None, ended.delete,
             "Delete a stopped sandbox with its files; an unknown one counts as deleted."),
    Endpoint("GET", "/sandboxes", None, actions.SandboxListResponse, roster.page,
             "List sandboxes, newest first, without renewing their leases.",
             query=("page", "page_size", "user_id", "experiment_id", "namespace", "image", "state")),
    Endpoint("POST", "/sandboxes/batch", actions.BatchRequest, actions.BatchResponse, roster.batch,
             "Tell all about several sandboxes, without renewing their leases; unknown ones are left out."),
    Endpoint("GET", "/sandboxes/<sandbox_id>/mount-infos", None, None, ended.mounts,
             "Tell what of the host a sandbox was started with."),
    Endpoint("POST", "/create_session", actions.CreateBashSessionRequest, actions.CreateBashSessionResponse,
             sessions.create_session, "Open a bash session."),
    Endpoint("POST", "/run_in_session", actions.BashAction, actions.BashObservation, sessions.run_in_session,
             "Run a command in a session."),
    Endpoint("POST", "/close_session", actions.CloseBashSessionRequest, actions.CloseBashSessionResponse,
             sessions.close_session, "Close a session and end what runs in it."),
    Endpoint("POST", "/execute", actions.Command, actions.CommandResponse, sessions.execute,
             "Run one process outside of any session."),
    Endpoint("POST", "/read_file", actions.ReadFileRequest, actions.ReadFileResponse, files.read_file,
             "Read a text file."),
    Endpoint("POST", "/write_file", actions.WriteFileRequest, actions.WriteFileResponse, files.write_file,
             "Write a text file; parent folders are made."),
    Endpoint("POST", "/upload", actions.UploadForm, actions.UploadResponse, files.upload,
             "Upload a file of any kind.", multipart=True),
    Endpoint("GET", "/results/<request_id>", None, None, results.get_result,
             "Fetch the answer of a call, waiting up to `wait` seconds for it.", query=("wait",)),
    Endpoint("GET", "/results/<request_id>/output", None, actions.OutputResponse, results.get_output,
             "Read what a command has printed so far; with `Accept: text/event-stream` follow it to its end.",
             query=("offset", "stream")),
    Endpoint("POST", "/results/<request_id>/cancel", None, actions.UnfinishedResponse, results.cancel,
             "End a running call as its timeout would, or withdraw a waiting one."),
    # Outside of the prefix, without a key: for launch scripts, probes and people.
    Endpoint("GET", "/", None, None, health.root, "Say that the service is here.", prefix="", open=True),
    Endpoint("GET", "/healthz", None, None, health.healthz, "Say whether the service works; 503 when it does not.",
             prefix="", open=True),
    Endpoint("GET", "/openapi.json", None, None, health.openapi, "This description.", prefix="", open=True),
    Endpoint("GET", "/docs", None, None, health.docs, "This description as a page.", prefix="", open=True),
)  # fmt: skip

__all__ = ["ENDPOINTS", "PREFIX", "Endpoint"]
