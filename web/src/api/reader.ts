/** Whether this page is the view of a share, and what it reads with: then it does nothing, and no script of a guest runs.
 *
 * A share has the routes of a sandbox that look, below its own address, for its own token, which is in this tab's memory
 * and goes into no address.
 */

type Reader = { shareId: string; token: string };

let reader: Reader | null = null;
let isOfShare = false;

/** Says, before anything else, that this page is the view of a share. */
export function beShare(): void {
  isOfShare = true;
}

/** Reads from now on with the token of a share. */
export function readAs(given: Reader): void {
  reader = given;
}

export function isShare(): boolean {
  return isOfShare;
}

export function currentReader(): Reader | null {
  return reader;
}

/** Returns where a share has what a path of its sandbox, or of its one context, names. */
export function sharedPath(path: string, shareId: string): string {
  return path.replace(/^\/v1\/sandboxes\/[^/?]+(?:\/contexts\/[^/?]+)?/, `/v1/shares/${shareId}`);
}

/** Returns the address of the socket, and its subprotocols, of which one may carry the token. */
export function watchPlace(): { path: string; protocols: string[] } {
  if (!reader) return { path: "/v1/watch", protocols: ["fumehood.watch"] };
  return {
    path: `/v1/shares/${reader.shareId}/watch`,
    protocols: ["fumehood.watch", `fumehood.token.${reader.token}`],
  };
}
