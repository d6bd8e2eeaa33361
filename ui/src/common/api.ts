/** HTTP API client; error responses are thrown as `Problem`. The session cookie is not readable by scripts. */
import { reportReachable } from "./connection";
import { prefix } from "./router";

export interface Diagnostic {
  file: string;
  line: number;
  column: number;
  end_line: number;
  end_column: number;
  code: string;
  severity: "error" | "warning";
  message: string;
  hint: string | null;
}

/** A problem document (RFC 9457), or its equivalent if the server is unreachable. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly diagnostics: Diagnostic[] = [],
  ) {
    super(detail || title);
  }
  /** The server is unreachable: the request can be retried. */
  get unreachable() {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

type Params = Record<string, string | number | boolean | null | undefined | string[]>;

export function address(path: string, params: Params = {}): string {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    if (Array.isArray(value)) value.forEach((each) => query.append(key, each));
    else if (value !== null && value !== undefined && value !== "") query.set(key, String(value));
  }
  const text = query.toString();
  return prefix + path + (text ? `?${text}` : "");
}

let onSignedOut = () => {};
export const setSignedOutHandler = (handler: () => void) => {
  onSignedOut = handler;
};

let clockOffset = 0;

/** Update the offset of the server's clock from the Date header; an offset within its precision is ignored. */
function updateClockOffset(response: Response) {
  const date = Date.parse(response.headers.get("date") ?? "");
  if (!Number.isNaN(date)) clockOffset = Math.abs(date - Date.now()) > 3000 ? date - Date.now() : 0;
}

/** The server's time in ms. */
export const serverNow = () => Date.now() + clockOffset;

export async function readProblem(response: Response): Promise<Problem> {
  let body: Record<string, unknown> = {};
  try {
    body = await response.json();
  } catch {
    // a proxy's error page: use the status
  }
  return new Problem(
    response.status,
    String(body.title ?? response.statusText),
    String(body.detail ?? `the server returned status ${response.status}`),
    (body.diagnostics as Diagnostic[]) ?? [],
  );
}

/** Send a request with `fetch`; a status other than 2xx is thrown as a Problem. */
export async function request(method: string, path: string, init: RequestInit & { params?: Params } = {}): Promise<Response> {
  const { params, ...rest } = init;
  let response: Response;
  try {
    response = await fetch(address(path, params), { method, credentials: "same-origin", ...rest });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    reportReachable(false);
    throw new Problem(0, "Server unreachable", "The connection failed. The page retries automatically.");
  }
  reportReachable(response.status !== 502 && response.status !== 504);
  updateClockOffset(response);
  if (response.ok) return response;
  if (response.status === 401) onSignedOut();
  throw await readProblem(response);
}

async function send<T>(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<T> {
  const response = await request(method, path, {
    body: body === undefined ? undefined : JSON.stringify(body),
    headers: body === undefined ? headers : { "Content-Type": "application/json", ...headers },
  });
  return (response.status === 204 ? undefined : await response.json()) as T;
}

export const api = {
  get: async <T>(path: string, params: Params = {}, signal?: AbortSignal): Promise<T> =>
    (await (await request("GET", path, { params, signal })).json()) as T,
  post: <T>(path: string, body?: unknown, headers?: Record<string, string>) => send<T>("POST", path, body, headers),
  patch: <T>(path: string, body?: unknown) => send<T>("PATCH", path, body),
  put: <T>(path: string, body?: unknown) => send<T>("PUT", path, body),
  delete: <T>(path: string) => send<T>("DELETE", path),
};

/** An idempotency key, so that a `POST` that starts work can be retried: `{"Idempotency-Key": ...}`. */
export const once = () => ({ "Idempotency-Key": crypto.getRandomValues(new Uint32Array(4)).join("-") });

export interface Page<T> {
  items: T[];
  next: string | null;
}
