/** One request of the API, with the login of this browser, or with the token of a share.
 *
 * The cookie counts only beside the header, which no simple request of another origin can carry.
 */

import { Problem, type ProblemBody, unanswered, unreachable } from "./problem";
import { currentReader, isShare, sharedPath } from "./reader";

export type Asked = {
  method?: string;
  body?: unknown;
  signal?: AbortSignal;
  accept?: string;
  // Only so many bytes of the beginning.
  most?: number;
  // Whether it does no harm to send it twice, although the method is none of reading.
  isRepeatable?: boolean;
  // A name of this act: sent again with it, it is done once.
  once?: string | undefined;
};

let onLoginNeeded: () => void = () => {};

/** Registers what happens when the server wants a login. */
export function whenLoginIsNeeded(listener: () => void): void {
  onLoginNeeded = listener;
}

export async function ask(path: string, asked: Asked = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: asked.accept ?? "application/json" };
  if (asked.most !== undefined) headers.Range = `bytes=0-${asked.most - 1}`;
  if (asked.once !== undefined) headers["Idempotency-Key"] = asked.once;
  const init: RequestInit = { method: asked.method ?? "GET", headers };
  const reader = currentReader();
  if (isShare()) {
    // No login of this browser counts here, nor is it sent.
    init.credentials = "omit";
    if (reader) headers.Authorization = `Bearer ${reader.token}`;
  } else {
    init.credentials = "same-origin";
    headers["X-Fumehood-Console"] = "1";
  }
  if (asked.signal) init.signal = asked.signal;
  if (asked.body instanceof Blob) {
    init.body = asked.body;
  } else if (asked.body !== undefined) {
    headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(asked.body);
  }

  let answer: Response;
  try {
    answer = await fetch(reader ? sharedPath(path, reader.shareId) : path, init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw lost(asked);
  }
  if (answer.ok) return answer;

  const problem = await problemOf(answer);
  // A proxy in between that got no answer knows no more than this page.
  if (!problem.code && PROXY_WITHOUT_ANSWER.includes(problem.status)) throw lost(asked);
  if (problem.status === 401 && !path.startsWith("/v1/login")) onLoginNeeded();
  throw problem;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const answer = await ask(path, signal ? { signal } : {});
  return (await answer.json()) as T;
}

const PROXY_WITHOUT_ANSWER = [502, 504];

/** What is known of a request whose answer was lost. */
function lost({ method = "GET", isRepeatable = false }: Asked): Problem {
  return method === "GET" || isRepeatable ? unreachable() : unanswered();
}

/** Returns a new name of an act. */
export function actName(): string {
  // `randomUUID` is there in secure contexts only.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Acts, or asks by a method that is none of reading: `isRepeatable` says which. */
export async function send<T = void>(
  method: string,
  path: string,
  body?: unknown,
  given: Pick<Asked, "isRepeatable" | "once"> = {},
): Promise<T> {
  const answer = await ask(path, { method, body, ...given });
  if (answer.status === 204) return undefined as T;
  try {
    return (await answer.json()) as T;
  } catch {
    throw lost({ method, ...given });
  }
}

async function problemOf(answer: Response): Promise<Problem> {
  const retryAfter = Number(answer.headers.get("Retry-After"));
  let body: Partial<ProblemBody> = {};
  try {
    body = (await answer.json()) as ProblemBody;
  } catch {
    // A proxy in between may answer with something else.
  }
  return new Problem(body, answer.status, Number.isFinite(retryAfter) && retryAfter > 0 ? retryAfter : null);
}

export const segment = encodeURIComponent;
