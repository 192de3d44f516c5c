/** The policy of the page, made narrower than the server can: only a browser knows for certain by which origin it came.
 *
 * What sandboxes serve at `/p/` is of the same origin as the page. Scripts, workers and styles come from the console's
 * own folder alone, and frames show its frame document alone: no script of a guest begins in a document that inherits this
 * policy, and no frame can be led to a guest's page.
 */

export function narrowPolicy(): void {
  const origin = location.origin;
  // A policy cannot name an address of IPv6; frames would then show nothing.
  if (location.hostname.startsWith("[")) return;

  const policy = document.createElement("meta");
  policy.httpEquiv = "Content-Security-Policy";
  policy.content =
    `script-src ${origin}/console/; worker-src ${origin}/console/; ` +
    `style-src ${origin}/console/ 'unsafe-inline'; frame-src ${origin}/console/frame`;
  document.head.append(policy);
}
