/** What the API answers instead of what was asked for: problem+json, or the want of any answer. */

export type ProblemBody = {
  status: number;
  code: string;
  detail: string;
  hint?: string;
  request_id?: string;
  outcome_unknown?: boolean;
  fields?: Record<string, unknown>;
};

export class Problem extends Error {
  readonly status: number;
  readonly code: string;
  readonly hint: string;
  readonly requestId: string;
  readonly isOutcomeUnknown: boolean;
  readonly fields: Record<string, unknown>;
  readonly retryAfterSeconds: number | null;

  constructor(body: Partial<ProblemBody>, status: number, retryAfterSeconds: number | null = null) {
    super(body.detail || `The server answered with status ${status}.`);
    this.status = status;
    this.code = body.code ?? "";
    this.hint = body.hint ?? "";
    this.requestId = body.request_id ?? "";
    this.isOutcomeUnknown = body.outcome_unknown ?? false;
    this.fields = body.fields ?? {};
    this.retryAfterSeconds = retryAfterSeconds;
  }

  /** Whether the same read may give an answer a moment later. */
  get isPassing(): boolean {
    return this.status === 0 || this.isRefusedForNow;
  }

  /** Whether nothing was done for want of room: the same act may be sent again after a while. */
  get isRefusedForNow(): boolean {
    return !this.isOutcomeUnknown && (this.status === 429 || this.status === 503);
  }
}

export function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  return new Problem(
    { code: "page_fault", detail: error instanceof Error ? error.message : String(error) },
    0,
  );
}

/** The want of any answer to a question, which can be asked again. */
export function unreachable(): Problem {
  return new Problem(
    {
      code: "unreachable",
      detail: "The server does not answer.",
      hint: "Is it still running? The page goes on when it is back.",
    },
    0,
  );
}

/** The want of any answer to an act: whether it arrived cannot be seen from here. */
export function unanswered(): Problem {
  return new Problem(
    {
      code: "unanswered",
      detail: "The connection broke before the server answered.",
      hint: "It may have happened all the same: look before you do it again.",
      outcome_unknown: true,
    },
    0,
  );
}
