/** The policy of the page, made narrower than the server can: only a browser knows for certain by which origin it came.
 *
 * What sandboxes serve at `/p/` is of the same origin as the page. Scripts, workers and styles come from the console's
 * own folder alone, and frames show its frame document alone: no script of a guest begins in a document that inherits this
 * policy, and no frame can be led to a guest's page.
 */

export function narrowPolicy(frame = "/console/frame"): void {
  const policy = document.createElement("meta");
  policy.httpEquiv = "Content-Security-Policy";
  policy.content = narrowerThanTheServers(location, frame);
  document.head.append(policy);
}

export function narrowerThanTheServers(
  { protocol, hostname, port, origin }: Location | URL,
  frame = "/console/frame",
): string {
  // A policy cannot name an address of IPv6. Any host will do for frames: the server's own policy says which one. Not
  // for scripts: a browser that takes it otherwise would have no page.
  if (hostname.startsWith("[")) return `frame-src ${protocol}//*${port && `:${port}`}${frame}`;

  return (
    `script-src ${origin}/console/; worker-src ${origin}/console/; ` +
    `style-src ${origin}/console/ 'unsafe-inline'; frame-src ${origin}${frame}`
  );
}
