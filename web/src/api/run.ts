/** Begins an execution: resolves when it has begun, and reads its stream to the end beside the page. */

import { ask } from "./client";

export async function begin(path: string, body: Record<string, unknown>, changed: () => void): Promise<void> {
  const answer = await ask(path, { method: "POST", body, accept: "application/x-ndjson" });
  const reader = answer.body?.getReader();
  await reader?.read();
  const drain = async () => {
    while (reader && !(await reader.read()).done) changed();
    changed();
  };
  drain().catch(changed);
}
