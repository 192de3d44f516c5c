/** Starts the verification: the one place where the page names a script by an address. */

import type { Head, Verdict } from "./verify";
import address from "./worker?worker&url";

type Policy = { createScriptURL: (url: string) => unknown };
type Factory = {
  createPolicy: (name: string, rules: { createScriptURL: (url: string) => string }) => Policy;
};

let policy: Policy | null = null;

/** The worker's script is a file of the page, and nothing else passes. */
function trusted(url: string): string {
  const factory = (window as unknown as { trustedTypes?: Factory }).trustedTypes;
  if (!factory) return url;
  policy ??= factory.createPolicy("fumehood", {
    createScriptURL: (given) => {
      if (given !== address) throw new TypeError("not a script of this page");
      return given;
    },
  });
  return policy.createScriptURL(url) as string;
}

export function verifyBeside(text: string, head: Head | null): Promise<Verdict> {
  const worker = new Worker(trusted(address), { type: "module" });
  return new Promise<Verdict>((resolve, reject) => {
    worker.onmessage = ({ data }) => resolve(data as Verdict);
    worker.onerror = (event) => reject(new Error(event.message || "the verification did not start"));
    worker.postMessage({ text, head });
  }).finally(() => worker.terminate());
}
