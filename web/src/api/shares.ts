/** Shares, as the API tells them to those who make them and to those who read them. */

export const PARTS = ["record", "variables", "files", "audit", "network"] as const;
export type SharedPart = (typeof PARTS)[number];

export const PART_NAMES: Record<SharedPart, string> = {
  record: "Code and outputs",
  variables: "Variables",
  files: "Files",
  audit: "Audit record",
  network: "Network log",
};

export type Share = {
  id: string;
  key_id: string;
  sandbox_id: string;
  context_id: string;
  shows: SharedPart[];
  from_at: string | null;
  until_at: string | null;
  created_at: string;
  ends_at: string;
  openings: number;
  readers: number;
};

export type NewShare = { share: Share; secret: string; url: string };

export type SharedSandbox = {
  shows: SharedPart[];
  context_id: string;
  from_at: string | null;
  until_at: string | null;
  ends_at: string;
  readers: number;
  state: string;
  reason: string;
  started_at: string | null;
  sandbox_ends_at: string | null;
};

export type Opened = { token: string; share: SharedSandbox };
