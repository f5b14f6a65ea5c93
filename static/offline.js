// @ts-check
/** Lets the browser keep the page for offline use, and offers a new version when there is one. */

/**
 * @param {{kept: () => void, offer: (accept: () => void) => void}} page kept: it works without a network now;
 *   offer: a new version is there, and `accept` changes to it
 */
export async function keepOffline({ kept, offer }) {
  const container = navigator.serviceWorker;
  if (!container) return; // not on an insecure page
  let accepted = false;
  container.addEventListener("controllerchange", () => {
    if (accepted) location.reload();
  });
  /** @param {ServiceWorker} worker */
  const offerIt = (worker) =>
    offer(() => {
      accepted = true;
      worker.postMessage("take over");
    });
  try {
    const registration = await container.register(new URL("./sw.js", import.meta.url), { updateViaCache: "none" });
    const { active, waiting } = registration;
    if (active) kept();
    if (waiting && active) offerIt(waiting);
    registration.addEventListener("updatefound", () => {
      const { installing } = registration;
      installing?.addEventListener("statechange", () => {
        if (installing.state === "activated" && !accepted) kept();
        if (installing.state === "installed" && registration.active) offerIt(installing);
      });
    });
  } catch (error) {
    // Storage is blocked or full, or the files changed meanwhile: the page works, with a network.
    console.info(`The page is not kept for offline use: ${error}`);
  }
}
