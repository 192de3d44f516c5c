/** The answers of the API, as far as the page reads them. */

export type Bound = { used: number; maximum: number | null };

export type Me = {
  key_id: string;
  name: string;
  is_owner: boolean;
  scopes: string[];
  login: { id: string; created_at: string; ends_at: string } | null;
  use?: { sandboxes: Bound; executions_at_once: Bound; executions_today: Bound; cpu_seconds_today: Bound };
};

export type Layer = { name: string; state: "on" | "off" | "degraded" | string; why: string };

export type Limits = Record<string, number | null>;

export type Network = {
  allow: string[];
  deny: string[];
  internet: boolean;
  presets: string[];
  hosts: Record<string, string>;
  secrets: Record<string, unknown>;
  max_bytes: number;
};

export type Use = {
  cpu_seconds: number;
  memory_bytes: number;
  peak_memory_bytes: number;
  processes: number;
  cells: number;
  last_outcome: string | null;
  last_at: string | null;
  watchers: number;
  is_running: boolean;
};

export type Sandbox = {
  id: string;
  template: string;
  state: string;
  started_at: string;
  ends_at: string | null;
  limits: Limits;
  isolation: { level: string; layers: Layer[] };
  metadata: Record<string, string>;
  owner: string;
  network: Network;
  parent_id: string | null;
  generation: number;
  pause: { reason?: string } | null;
  use?: Use | null;
};

export type Page<T> = { items: T[]; next_cursor?: string | null };

export type CellError = { kind: string; name: string; value: string; traceback: string; hint: string };

export type Usage = {
  wall_seconds: number;
  user_cpu_seconds: number;
  system_cpu_seconds: number;
  peak_memory_bytes: number | null;
};

export type Result = {
  text?: string;
  html?: string;
  markdown?: string;
  svg?: string;
  png?: string;
  jpeg?: string;
  pdf?: string;
  latex?: string;
  json?: unknown;
  javascript?: string;
  data?: Record<string, unknown[]>;
  chart?: unknown;
  extra: Record<string, unknown>;
  metadata: Record<string, unknown>;
  is_main_result: boolean;
  display_id: string | null;
  truncated: Record<string, number>;
};

export type Output = { stream: "stdout" | "stderr"; text: string; at_seconds: number | null };

export type Execution = {
  id: string;
  context_id: string;
  results: Result[];
  logs: { entries: Output[] };
  error: CellError | null;
  execution_count: number | null;
  usage: Usage;
  truncated: { stdout_bytes: number; stderr_bytes: number; results: number };
  state_lost: boolean;
  started_at: string | null;
  tool_calls: { name: string }[];
  transaction: { outcome?: string } | null;
  changes: Changes | null;
};

export type Changes = {
  variables: { name: string; kind: string; type: string; summary: string }[];
  files: { path: string; kind: string }[];
  more_files: number;
};

export type InputRequest = { request_id: string; prompt: string; is_password: boolean };

export type Cell = {
  position: number;
  id: string;
  context_id: string;
  state: "running" | "ended";
  code: string;
  by: string;
  via: string;
  started_at: string | null;
  is_fresh: boolean;
  is_undone: boolean;
  outputs_dropped: boolean;
  outcome: string | null;
  execution_count: number | null;
  usage: Usage | null;
  error: CellError | null;
  state_lost: boolean;
  changes: { variables: number; files: number } | null;
  tool_calls: number;
  output_characters: number;
  results: { number: number; parts: { mime: string; size_bytes: number }[] }[];
  input_request: InputRequest | null;
  execution?: Execution | null;
};

export type CellPage = {
  items: Cell[];
  first_position: number;
  end_position: number;
  dropped_cells: number;
  dropped_outputs: number;
};

export type Checkpoint = {
  id: string;
  name: string | null;
  context_id: string;
  created_at: string;
  files: number;
  files_bytes: number;
  left_behind: { name?: string; reason?: string }[] | string[];
  execution_id?: string | null;
  parent_checkpoint_id?: string | null;
};

export type AuditEntry = {
  sequence: number;
  at: string;
  kind: string;
  fields: Record<string, unknown>;
  previous: string;
  hash: string;
};
