type Kind = 'connect' | 'timeout' | 'cut' | 'refused-address'

/**
 * Why there is no answer. It has no URL, which would show the origin and the merchant's query, and
 * no cause, whose message names the URL.
 */
export class UpstreamError extends Error {
  override readonly name = 'UpstreamError'
  readonly kind: Kind
  /** Error code of the system or of Bun, if there is one. */
  readonly code: string | undefined

  constructor(kind: Kind, code?: string) {
    super(`upstream ${kind}${code === undefined ? '' : ` (${code})`}`)
    this.kind = kind
    this.code = code
  }
}

/**
 * The answer cannot be decoded: its encoding is unknown, or nested, or it breaks off. Such an
 * answer is not sent, because a client could decode a secret in it.
 */
export class UnreadableError extends Error {
  override readonly name = 'UnreadableError'
}

export type ExchangeWatch = ReturnType<typeof startWatch>

/**
 * The last part of a time limit, ms, which has a timer of its own. When the process was paused for
 * longer than the limit, it reads in this time what arrived during the pause.
 */
const lastMs = 1_000

/** Ends an exchange that takes too long, and stores why it ended. */
export function startWatch(outer: AbortSignal | undefined) {
  const controller = new AbortController()
  const { signal } = controller
  let timer: ReturnType<typeof setTimeout> | undefined
  let reason: UpstreamError | undefined
  const end = (error: UpstreamError) => {
    reason ??= error
    controller.abort(error)
  }
  const leave = () => end(new UpstreamError('cut', 'aborted'))
  outer?.addEventListener('abort', leave, { once: true })
  if (outer?.aborted === true) leave()
  const stop = () => {
    clearTimeout(timer)
    outer?.removeEventListener('abort', leave)
  }
  return {
    signal,
    stop,
    /** Restarts the time limit. */
    arm(timeoutMs: number): void {
      clearTimeout(timer)
      const last = Math.min(lastMs, timeoutMs / 2)
      timer = setTimeout(() => {
        timer = setTimeout(() => end(new UpstreamError('timeout')), last)
      }, timeoutMs - last)
    },
    /** Ends the exchange. */
    abort(): void {
      stop()
      controller.abort()
    },
    explain: (error: unknown): UpstreamError =>
      reason ?? (error instanceof UpstreamError ? error : classify(error)),
    /** The promise, or the end of the exchange if that is earlier. */
    race: <T>(promise: Promise<T>): Promise<T> =>
      new Promise((resolve, reject) => {
        if (signal.aborted) reject(reason)
        signal.addEventListener('abort', () => reject(reason), { once: true })
        promise.then(resolve, reject)
      }),
  }
}

// Codes of connections that were never made. A connection that broke may have sent the request.
const connectCodes =
  /^(?:ECONNREFUSED|ENOTFOUND|EAI_.*|EHOSTUNREACH|ENETUNREACH|ENETDOWN|EADDRNOTAVAIL|EPROTO|ConnectionRefused|FailedToOpenSocket|.*(?:TLS|SSL|CERT|SIGNATURE|ISSUER|CRL).*)$/

function classify(error: unknown): UpstreamError {
  if (error instanceof UnreadableError) return new UpstreamError('cut', 'unreadable')
  const code = errorCodeOf(error)
  return new UpstreamError(code !== undefined && connectCodes.test(code) ? 'connect' : 'cut', code)
}

/** Error code of the system or of Bun. */
export function errorCodeOf(error: unknown): string | undefined {
  const isCoded = typeof error === 'object' && error !== null && 'code' in error
  return isCoded && typeof error.code === 'string' ? error.code : undefined
}
