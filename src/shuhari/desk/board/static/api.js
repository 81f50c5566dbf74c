// What the board asks of its server. The token comes once, in the address behind #, which browsers send to nobody.

const KEPT = "shuhari-token";

/** Take the token out of the address, so that it is not bookmarked with a page. */
export function takeToken() {
  const found = /^#token=(.+)/.exec(location.hash);
  if (!found) return;
  let token = found[1];
  try { token = decodeURIComponent(token); } catch { /* typed by hand, with % in it */ }
  sessionStorage.setItem(KEPT, token);
  history.replaceState(null, "", "#/runs");
}

export const hasToken = () => sessionStorage.getItem(KEPT) !== null;
export const NO_TOKEN = "This needs the token: open the address that shuhari board printed";

export const NO_ANSWER = "The board does not answer: was it stopped? Start shuhari board again, and open the address that it prints";

/** An address below /api with a query; values that are lists are given several times, empty ones not at all. */
export function address(name, query = {}) {
  const words = new URLSearchParams();
  for (const [key, value] of Object.entries(query))
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== null && one !== undefined && one !== "") words.append(key, one);
  const text = words.toString();
  return `/api/${name}${text ? `?${text}` : ""}`;
}

async function ask(where, options) {
  const token = sessionStorage.getItem(KEPT);
  const headers = { ...options.headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
  const reply = await fetch(where, { ...options, headers }).catch((error) => {
    if (options.signal?.aborted) throw error;
    throw new Error(NO_ANSWER); // what browsers say of it is of no help
  });
  if (reply.ok) return reply;
  let message = `${reply.status} ${reply.statusText}`;
  try { message = (await reply.json()).error.message; } catch { /* not ours */ }
  throw new Error(message);
}

/** What an address says, as plain values. `signal` ends the question. */
export async function get(name, query, signal) {
  return (await ask(address(name, query), { signal })).json();
}

/** Ask for a change, or for what costs much; needs the token. `signal` ends the question. */
export async function post(name, body, signal) {
  const headers = { "content-type": "application/json" };
  return (await ask(`/api/${name}`, { method: "POST", headers, body: JSON.stringify(body), signal })).json();
}

/** The address of a picture or a file, for <img> and for downloads. Revoke it with URL.revokeObjectURL. */
export async function getBlob(name, query, signal) {
  return URL.createObjectURL(await (await ask(address(name, query), { signal })).blob());
}

/** Save text as a file. */
export function download(name, text, kind = "text/plain") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
