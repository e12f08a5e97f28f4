/** Requests to the server, and what the page says when one fails. */

const TOKEN = "sbert-search token";

/** A request that was not answered. */
export class ApiError extends Error {
  /**
   * @param {number} status  0: the server did not answer.
   * @param {string} message
   * @param {number} retryS  Seconds after which the server may be asked again; 0: unknown.
   */
  constructor(status, message, retryS = 0) {
    super(message);
    this.status = status;
    this.retryS = retryS;
  }
}

/** @param {string} token */
export function keepToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

/**
 * Send a request; with a body it is a POST.
 *
 * @param {string} path  After /v1/.
 * @param {object | null} body
 * @param {AbortSignal} signal
 * @returns {Promise<{answer: any, serverMs: number, totalMs: number}>}
 */
export async function ask(path, body, signal) {
  const token = sessionStorage.getItem(TOKEN);
  const started = performance.now();
  let response, answer;
  try {
    response = await fetch(`v1/${path}`, {
      method: body === null ? "GET" : "POST",
      headers: {
        ...(body === null ? {} : { "content-type": "application/json" }),
        ...(token === null ? {} : { authorization: `Bearer ${token}` }),
      },
      body: body === null ? null : JSON.stringify(body),
      signal,
    });
    answer = parsed(await response.text());
  } catch (error) {
    if (signal.aborted || response === undefined) {
      throw signal.aborted ? error : new ApiError(0, "The server does not answer.");
    }
    throw new ApiError(response.status, "The answer of the server cannot be read.");
  }
  if (!response.ok) throw problem(response, answer);
  return {
    answer,
    serverMs: Number(response.headers.get("x-total-time")),
    totalMs: performance.now() - started,
  };
}

const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*/g; // texts and numbers

/**
 * Parse JSON. An integer that a number of JavaScript would round becomes a text.
 *
 * @param {string} json
 * @returns {any}
 */
export function parsed(json) {
  /** @param {string} token */
  const kept = (token) =>
    /^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"${token}"` : token;
  return JSON.parse(/\d{16}/.test(json) ? json.replace(TOKENS, kept) : json);
}

/**
 * @param {Response} response
 * @param {{error?: {message?: string}}} answer
 */
function problem(response, answer) {
  const said = answer.error?.message ?? `The server answered with the status ${response.status}.`;
  const retryS = Number(response.headers.get("retry-after") ?? 0);
  return new ApiError(response.status, said, retryS);
}

/** Runs one request at a time: a new one aborts the one before, whose answer is dropped. */
export class Newest {
  #controller = new AbortController();

  /**
   * @template T
   * @param {(signal: AbortSignal) => Promise<T>} request
   * @returns {Promise<T | null>} null: a newer request has begun.
   */
  async run(request) {
    const { signal } = this.restart();
    try {
      const result = await request(signal);
      return signal.aborted ? null : result;
    } catch (error) {
      if (signal.aborted) return null;
      throw error;
    }
  }

  /** Abort the present request. */
  restart() {
    this.#controller.abort();
    this.#controller = new AbortController();
    return this.#controller;
  }
}
