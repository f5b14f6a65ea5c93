// @ts-check
/**
 * Keeps the page, so that it opens without a network. The list of its files and their sha256 comes from the server
 * (sw-files.js, app/server/site.py): a change of any file is a new version. That is fetched beside the old one and waits
 * until the page asks for it. Models from the hub are none of its business: the engine keeps those.
 */

/** @typedef {{version: string, files: Record<string, string>}} Site */
/** @typedef {{waitUntil: (work: Promise<unknown>) => void}} Extendable */

const worker = /** @type {any} */ (self);
worker.importScripts("sw-files.js");
const site = /** @type {Site} */ (worker.SITE);

const scope = new URL("./", worker.location.href);
/** Other pages of this origin have caches, too. */
const PREFIX = `tabgpt ${scope.pathname} `;
const NAME = PREFIX + site.version;
/** Which files a cache holds, as what; not a file of the site. */
const LIST = new URL("sw-files.js?kept", scope).href;
const AT_ONCE = 4;

/** @param {string} path */
const urlOf = (path) => new URL(path, scope).href;

worker.addEventListener("install", (/** @type {Extendable} */ event) => event.waitUntil(fill()));
worker.addEventListener("activate", (/** @type {Extendable} */ event) => event.waitUntil(tidy()));
worker.addEventListener("message", (/** @type {MessageEvent} */ { data }) => {
  if (data === "take over") worker.skipWaiting();
});
worker.addEventListener("fetch", (/** @type {any} */ event) => {
  const path = pathOf(event.request);
  if (path === null) return;
  event.respondWith(answer(path, event.request));
  if (event.request.mode === "navigate") event.waitUntil(leaveToOthers());
});

/** Get every file of this version: from an earlier one where it is the same. */
async function fill() {
  const cache = await caches.open(NAME);
  const earlier = await kept();
  const waiting = Object.entries(site.files);
  /** @param {string} path @param {string} hash */
  const get = async (path, hash) => {
    if (await cache.match(urlOf(path))) return; // a broken-off installation goes on
    const same = await earlier(path, hash);
    await cache.put(urlOf(path), same ?? (await fetched(path, hash)));
  };
  const line = async () => {
    for (let next = waiting.pop(); next; next = waiting.pop()) await get(...next);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, line));
  await cache.put(LIST, Response.json(site.files));
}

/** @param {string} path @param {string} hash */
async function fetched(path, hash) {
  const response = await fetch(urlOf(path), { cache: "no-cache" });
  if (!response.ok) throw new Error(`${path} gave HTTP ${response.status}`);
  const digest = await crypto.subtle.digest("SHA-256", await response.clone().arrayBuffer());
  const hex = Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
  // A deployment under way: half of one version and half of another would not work together.
  if (hex !== hash) throw new Error(`${path} is not the one that belongs to this version`);
  return response;
}

/** What finds a file in the caches of earlier versions, if it is the same there. */
async function kept() {
  const names = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== NAME);
  const found = await Promise.all(
    names.map(async (name) => {
      const cache = await caches.open(name);
      const list = await cache.match(LIST);
      return { cache, files: /** @type {Record<string, string>} */ (list ? await list.json() : {}) };
    }),
  );
  return async (/** @type {string} */ path, /** @type {string} */ hash) =>
    found.find(({ files }) => files[path] === hash)?.cache.match(urlOf(path));
}

/** Another site may have moved to this address, as they do on localhost: then it is not ours to answer for. */
async function leaveToOthers() {
  const answered = await fetch(urlOf("sw-files.js"), { cache: "no-store" }).catch(() => null);
  if (answered?.status === 404 || answered?.status === 410) await worker.registration.unregister();
}

/** Delete what earlier versions had. */
async function tidy() {
  const names = await caches.keys();
  await Promise.all(names.filter((name) => name.startsWith(PREFIX) && name !== NAME).map((name) => caches.delete(name)));
}

/** The site's file that a request is for, or null. @param {Request} request */
function pathOf(request) {
  const url = new URL(request.url);
  if (request.method !== "GET" || url.origin !== scope.origin || !url.pathname.startsWith(scope.pathname)) return null;
  const path = url.pathname.slice(scope.pathname.length) || "index.html";
  return Object.hasOwn(site.files, path) ? path : null;
}

/** @param {string} path @param {Request} request */
async function answer(path, request) {
  const cache = await caches.open(NAME);
  const whole = await cache.match(urlOf(path));
  if (!whole) return fetch(request); // the browser made room
  const range = request.headers.get("range");
  return range ? part(whole, range) : whole;
}

/** @param {Response} whole @param {string} range */
async function part(whole, range) {
  const blob = await whole.blob();
  const [, from, to] = /^bytes=(\d+)-(\d*)$/.exec(range.trim()) ?? [];
  if (from === undefined) return new Response(blob, { headers: whole.headers });
  const start = Number(from);
  const end = to ? Math.min(Number(to), blob.size - 1) : blob.size - 1;
  const headers = new Headers(whole.headers);
  if (start > end) {
    headers.set("Content-Range", `bytes */${blob.size}`);
    return new Response(null, { status: 416, headers });
  }
  headers.set("Content-Range", `bytes ${start}-${end}/${blob.size}`);
  headers.set("Content-Length", String(end - start + 1));
  return new Response(blob.slice(start, end + 1), { status: 206, statusText: "Partial Content", headers });
}
