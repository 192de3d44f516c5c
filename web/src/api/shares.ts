/** Shares, as the API tells them to those who make them and to those who read them. */
import type * as api from "./schema";

export const PARTS = ["record", "variables", "files", "audit", "network"] as const;
export type SharedPart = (typeof PARTS)[number];

export const PART_NAMES: Record<SharedPart, string> = {
  record: "Code and outputs",
  variables: "Variables",
  files: "Files",
  audit: "Audit record",
  network: "Network log",
};

export type Share = api.ShareAnswer;

export type NewShare = api.NewShareAnswer;

export type SharedSandbox = api.SharedSandboxAnswer;

export type Opened = api.OpenedShare;
