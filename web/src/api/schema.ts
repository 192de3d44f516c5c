/** The types of the API: written by `make console-types` from its OpenAPI description; do not edit. */

export type AuditEntry = {
  sequence: number;
  at: string;
  kind: string;
  fields: Record<string, unknown>;
  previous: string;
  hash: string;
};

export type AuditHead = {
  sequence: number;
  hash: string;
};

export type AuditLog = {
  sandbox_id: string;
  entries: (AuditEntry)[];
  dropped: number;
};

export type Capacity = {
  sandboxes: number;
  max_sandboxes: number;
  memory_available_bytes: number;
  memory_total_bytes: number;
  cpu_cores: number;
  load: number;
  host_id: string;
  incarnation: string;
  version: string;
  isolation_level: string;
  is_warm: boolean;
  cold_reason: string;
  pool_ready: number;
  pool_hits: number;
  pool_misses: number;
  is_draining: boolean;
};

export type Cell = {
  position: number;
  id: string;
  context_id: string;
  state: "waiting" | "running" | "ended";
  code: string;
  stdin: string | null;
  by: string;
  via: string;
  started_at: string | null;
  is_fresh: boolean;
  is_undone: boolean;
  outputs_dropped: boolean;
  outcome: string | null;
  execution_count: number | null;
  usage: Usage | null;
  error: ExecutionError | null;
  state_lost: boolean;
  transaction: Transaction | null;
  truncated: Truncation;
  changes: ChangeCounts | null;
  tool_calls: number;
  output_characters: number;
  results: (ResultSummary)[];
  input_request: PendingInput | null;
  execution: Execution | null;
  seq: number | null;
};

export type CellComparison = {
  type: "cell";
  number: number;
  code: string;
  differences: (Difference)[];
  is_known: boolean;
  is_skipped: boolean;
  skip_reason: "" | "undone" | "interrupted" | "ended";
};

export type CellPage = {
  items: (Cell)[];
  first_position: number;
  end_position: number;
  dropped_cells: number;
  dropped_outputs: number;
};

export type ChangeCounts = {
  variables: number;
  files: number;
};

export type ChangedFile = {
  path: string;
  kind: "created" | "modified" | "deleted";
  size_bytes: number;
};

export type Changes = {
  variables: (VariableChange)[];
  files: (ChangedFile)[];
  more_files: number;
};

export type CheckpointInfo = {
  id: string;
  name: string | null;
  context_id: string;
  created_at: string;
  files: number;
  files_bytes: number;
  left_behind: (string)[];
  position: number;
  execution_id: string | null;
  parent_checkpoint_id: string | null;
  is_lost: boolean;
};

export type CommandList = {
  items: (ProcessInfo)[];
};

export type CommandPage = {
  items: (RanCommand)[];
  dropped_commands: number;
  next_cursor: number | null;
};

export type CommandPiece = {
  stream: "stdout" | "stderr";
  text: string;
  begin_bytes: number;
  size_bytes: number;
  data: string | null;
};

export type Comparison = {
  before: Moment;
  after: Moment;
  context_id: string;
  state: "current" | "running" | "paused" | "none";
  variables: (VariableDifference)[];
  same_variables: number;
  more_variables: number;
  are_marked: boolean;
  files: (ChangedFile)[];
  more_files: number;
};

export type DescribedSetting = {
  name: string;
  group: string;
  help: string;
  value: string;
  source: string;
  origin: string;
};

export type Difference = {
  what: string;
  expected: string | null;
  actual: string | null;
};

export type EgressLog = {
  items: (EgressRecord)[];
};

export type EgressRecord = {
  at: string;
  sandbox_id: string;
  kind: "http" | "connect" | "socks";
  name: string;
  address: string | null;
  port: number;
  verdict: "allowed" | "denied";
  rule: string;
  bytes_sent: number;
  bytes_received: number;
};

export type EndedSandbox = {
  sandbox: SandboxInfo;
  ended_at: string;
  reason: string;
  contexts: (KeptContext)[];
  cells: number;
  commands: number;
  failed: number;
  last_outcome: string | null;
  cpu_seconds: number;
  peak_memory_bytes: number;
  size_bytes: number;
};

export type Execution = {
  id: string;
  context_id: string;
  results: (ResultAnswer)[];
  logs: Logs;
  error: ExecutionError | null;
  execution_count: number | null;
  usage: Usage;
  truncated: Truncation;
  state_lost: boolean;
  isolation: string;
  started_at: string | null;
  tool_calls: (ToolOutcome)[];
  transaction: Transaction | null;
  changes: Changes | null;
  audit_head: AuditHead | null;
  text: string | null;
};

export type ExecutionError = {
  kind: "exception" | "time_limit" | "cpu_limit" | "interrupted" | "out_of_memory" | "context_died";
  name: string;
  value: string;
  traceback: string;
  hint: string;
};

export type Family = {
  items: (Relative)[];
};

export type FileInfo = {
  name: string;
  path: string;
  type: "file" | "dir" | "symlink" | "other";
  size_bytes: number;
  mode: number;
  permissions: string;
  owner: string;
  group: string;
  modified_at: string | null;
  symlink_target: string | null;
  resolved_target: string | null;
  metadata: Record<string, string>;
};

export type FileList = {
  items: (FileInfo)[];
};

export type Isolation = {
  level: string;
  layers: (Layer)[];
};

export type KeepaliveLine = {
  type: "keepalive";
};

export type KeptContext = {
  id: string;
  language: string;
  cells: number;
};

export type Key = {
  id: string;
  name: string;
  scopes: (string)[];
  policy: Policy;
  created_at: string;
  revoked_at: string | null;
  last_used_at: string | null;
  previous_until: string | null;
  made_by: string | null;
};

export type KeyList = {
  items: (Key)[];
};

export type KeyUse = {
  sandboxes: Used;
  executions_at_once: Used;
  executions_today: Used;
  cpu_seconds_today: Used;
};

export type KeyWithToken = {
  key: Key;
  token: string;
};

export type Layer = {
  name: string;
  state: "on" | "degraded" | "off";
  why: string;
};

export type Limits = {
  wall_seconds: number;
  cpu_seconds: number | null;
  memory_bytes: number;
  processes: number;
  cpu_cores: number | null;
  open_files: number;
  disk_bytes: number;
  inodes: number;
  stdout_bytes: number;
  stderr_bytes: number;
  result_bytes: number;
  result_count: number;
  grace_seconds: number;
};

export type ListeningPort = {
  port: number;
  addresses: (string)[];
  program: string;
  pid: number | null;
  started_at: string | null;
  is_answered_outside: boolean;
};

export type LogEntry = {
  stream: "stdout" | "stderr";
  text: string;
  at_seconds: number;
};

export type LoginAnswer = {
  id: string;
  key_id: string;
  created_at: string;
  last_used_at: string;
  ends_at: string;
  user_agent: string;
  is_current: boolean;
};

export type Logs = {
  entries: (LogEntry)[];
  stdout: (string)[];
  stderr: (string)[];
};

export type MachineInfo = {
  host_id: string;
  state: "ready" | "draining" | "absent";
  reason: string;
  labels: Record<string, string>;
  templates: (string)[];
  capacity: Capacity | null;
};

export type MachinePage = {
  items: (MachineInfo)[];
  runs_running: number;
  runs_waiting: number;
};

export type MachineRow = {
  name: string;
  state: string;
  need: string;
  why: string;
  how_to_get_it: string;
  cause: string;
};

export type MachineRows = {
  items: (MachineRow)[];
  is_of_sandboxes: boolean;
};

export type Me = {
  key_id: string;
  name: string;
  is_owner: boolean;
  scopes: (string)[];
  policy: Policy;
  login: LoginAnswer | null;
  use: KeyUse;
};

export type Moment = {
  id: string;
  name: string | null;
  at: string;
  position: number;
};

export type Network = {
  allow: (string)[];
  deny: (string)[];
  internet: boolean;
  presets: (string)[];
  hosts: Record<string, string>;
  secrets: Record<string, Record<string, string>>;
  max_bytes: number;
};

export type NewShareAnswer = {
  share: ShareAnswer;
  secret: string;
  url: string;
};

export type OpenedShare = {
  token: string;
  share: SharedSandboxAnswer;
};

export type PartSummary = {
  mime: string;
  size_bytes: number;
};

export type PauseReport = {
  memory_before_bytes: number | null;
  memory_after_bytes: number | null;
  reclaimed_bytes: number;
  means: string;
  why: string;
  files_only: boolean;
};

export type PendingInput = {
  request_id: string;
  prompt: string;
  is_password: boolean;
};

export type Policy = {
  max_sandboxes?: number | null;
  max_concurrent_executions?: number | null;
  executions_per_day?: number | null;
  cpu_seconds_per_day?: number | null;
  expires_at?: string | null;
  max_network?: "none" | "pip" | "listed" | "internet" | null;
  max_limits?: Record<string, number>;
};

export type PortList = {
  state: "current" | "none";
  items: (ListeningPort)[];
};

export type Problem = {
  type: string;
  title: string;
  status: number;
  detail: string;
  code: string;
  hint: string;
  outcome_unknown: boolean;
  request_id: string;
  fields: Record<string, unknown>;
};

export type ProblemLine = {
  type: "problem";
  problem: Problem;
};

export type ProcessInfo = {
  pid: number;
  argv: (string)[];
  cwd: string;
  envs: Record<string, string>;
  is_pty: boolean;
};

export type QueueAnswer = {
  places: number;
  capacity: number;
  running: number;
  waiting: number;
  mean_seconds: number;
  oldest_wait_seconds: number | null;
  refused: number;
  timed_out: number;
  keys: (QueueOfKey)[];
};

export type QueueOfKey = {
  key_id: string;
  waiting: number;
};

export type RanCommand = {
  number: number;
  pid: number;
  command: string;
  cwd: string;
  is_terminal: boolean;
  started_at: string;
  ended_at: string | null;
  exit_code: number | null;
  timed_out: boolean;
  output: (CommandPiece)[];
};

export type RecordList = {
  is_kept: boolean;
  items: (EndedSandbox)[];
  next_cursor: string | null;
  left_out_hosts: (string)[];
};

export type Relative = {
  id: string;
  parent_id: string | null;
  state: "running" | "paused" | "ending" | "ended";
  started_at: string;
  ended_at: string | null;
  reason: string;
  last_outcome: string | null;
  cells: number;
  owner: string;
};

export type ReplayLine = CellComparison | ReplayedLine | ProblemLine | KeepaliveLine;

export type ReplayedLine = {
  type?: "replayed";
  cells: number;
  same: number;
  first_difference: number | null;
  dropped_cells: number;
  not_fixed: (string)[];
};

export type ResultAnswer = {
  text?: string | null;
  html?: string | null;
  markdown?: string | null;
  svg?: string | null;
  png?: string | null;
  jpeg?: string | null;
  pdf?: string | null;
  latex?: string | null;
  json?: unknown;
  javascript?: string | null;
  data?: Record<string, (unknown)[]> | null;
  chart?: Record<string, unknown> | null;
  extra: Record<string, string>;
  metadata: Record<string, unknown>;
  is_main_result: boolean;
  display_id: string | null;
  truncated: Record<string, number>;
};

export type ResultSummary = {
  number: number;
  is_main_result: boolean;
  display_id: string | null;
  parts: (PartSummary)[];
};

export type SandboxInfo = {
  id: string;
  template: string;
  state: "running" | "paused" | "ending";
  started_at: string;
  ends_at: string | null;
  limits: Limits;
  isolation: Isolation;
  idle_timeout_seconds: number | null;
  metadata: Record<string, string>;
  owner: string;
  on_timeout: "kill" | "pause" | "pause_files";
  on_host_loss: "raise" | "restore";
  auto_resume: boolean;
  network: Network;
  parent_id: string | null;
  generation: number;
  own_interpreter: boolean;
  pause: PauseReport | null;
  languages: Record<string, string>;
};

export type SandboxUse = {
  cpu_seconds: number | null;
  memory_bytes: number | null;
  peak_memory_bytes: number | null;
  processes: number | null;
  cells: number;
  is_running: boolean;
  last_outcome: string | null;
  last_at: string | null;
  watchers: number;
  contexts: (string)[];
};

export type SecurityEventCount = {
  kind: string;
  action: string;
  count: number;
};

export type SecurityEventCounts = {
  items: (SecurityEventCount)[];
  are_counted: boolean;
};

export type SettingList = {
  items: (DescribedSetting)[];
};

export type ShareAnswer = {
  id: string;
  key_id: string;
  sandbox_id: string;
  context_id: string;
  shows: ("record" | "variables" | "files" | "audit" | "network")[];
  from_at: string | null;
  until_at: string | null;
  created_at: string;
  ends_at: string;
  openings: number;
  readers: number;
};

export type SharedAudit = {
  items: (SharedEntry)[];
  is_verifiable: false;
};

export type SharedConnection = {
  at: string;
  kind: string;
  name: string;
  port: number;
  verdict: "allowed" | "denied";
  rule: string;
  bytes_sent: number;
  bytes_received: number;
};

export type SharedEntry = {
  sequence: number;
  at: string;
  kind: string;
  fields: Record<string, boolean | number | string | (unknown)[] | Record<string, unknown> | null>;
};

export type SharedNetworkLog = {
  items: (SharedConnection)[];
};

export type SharedSandboxAnswer = {
  shows: ("record" | "variables" | "files" | "audit" | "network")[];
  context_id: string;
  from_at: string | null;
  until_at: string | null;
  ends_at: string;
  readers: number;
  state: "running" | "paused" | "ending" | "ended";
  reason: string;
  started_at: string | null;
  sandbox_ends_at: string | null;
};

export type StartCommand = {
  command: string;
  ready: string;
  ready_seconds: number;
};

export type TemplateInfo = {
  name: string;
  python: string;
  preload: (string)[];
  envs: Record<string, string>;
  has_files: boolean;
  size_bytes: number;
  built_at: string;
  fingerprint: string;
  own_interpreter: boolean;
  left_out: Record<string, string>;
  start: StartCommand | null;
  languages: Record<string, string>;
  limits: Record<string, number>;
};

export type TemplateList = {
  items: (TemplateInfo)[];
};

export type ToolOutcome = {
  name: string;
  ok: boolean;
  seconds: number;
};

export type Transaction = {
  outcome: "committed" | "rolled_back";
  reason: string;
  left_behind: (string)[];
};

export type Truncation = {
  stdout_bytes: number;
  stderr_bytes: number;
  results: number;
};

export type Usage = {
  wall_seconds: number;
  user_cpu_seconds: number;
  system_cpu_seconds: number;
  peak_memory_bytes: number;
  bytes_in: number;
  bytes_out: number;
};

export type UsageItem = {
  key_id: string;
  start: string;
  executions: number;
  sandboxes: number;
  cpu_seconds: number;
  wall_seconds: number;
  bytes_in: number;
  bytes_out: number;
  errors: number;
};

export type UsageList = {
  items: (UsageItem)[];
};

export type Used = {
  used: number;
  maximum: number | null;
};

export type Variable = {
  name: string;
  type: string;
  summary: string;
  size_bytes: number | null;
  since: string | null;
  text: string | null;
  shape: (number)[] | null;
  columns: ((string)[])[] | null;
  rows: ((string)[])[] | null;
  items: ((string)[])[] | null;
};

export type VariableChange = {
  name: string;
  kind: "added" | "changed" | "deleted";
  type: string;
  summary: string;
  size_bytes: number | null;
};

export type VariableDifference = {
  name: string;
  kind: "added" | "changed" | "deleted";
  before: Variable | null;
  after: Variable | null;
};

export type VariablePage = {
  state: "current" | "running" | "paused" | "none";
  items: (Variable)[];
  as_of: string | null;
  count: number;
  next_cursor: string | null;
};
