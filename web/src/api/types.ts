/** The answers of the API by the names that the page uses; their types are those of its description. */

import type * as api from "./schema";

export type Bound = api.Used;
export type Me = api.Me;
export type Layer = api.Layer;
export type Limits = api.Limits;
export type Network = api.Network;
export type Use = api.SandboxUse;
export type Sandbox = api.SandboxInfo & { use?: Use | null };
export type Page<T> = { items: T[]; next_cursor?: string | null };
export type CellError = api.ExecutionError;
export type Usage = api.Usage;
export type Result = api.ResultAnswer;
export type Output = api.LogEntry;
export type Execution = api.Execution;
export type Changes = api.Changes;
export type InputRequest = api.PendingInput;
export type Cell = api.Cell;
export type CellPage = api.CellPage;
export type Checkpoint = api.CheckpointInfo;
export type AuditEntry = api.AuditEntry;
