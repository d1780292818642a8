import { clientOf, type Peer } from '../../http/client'
import type * as RateLimit from '../../http/rate-limit'
import * as Messages from './Messages'

/** Limits of each client. */
export type Limits = {
  readonly rateLimit: RateLimit.RateLimit
  readonly now: () => number
  readonly paidPerMinute: number
  readonly trustProxy: number
  readonly messageMaxBytes: number
}

/** Most bytes of messages of one client in a minute: 64 messages of full length. */
const bytesPerMinute = 64 * Messages.messageMaxBytes
/** Bytes that count as one unit of the rate limit. */
const unitBytes = 4096

/** Counts the announced bytes of a request, then its messages, by client. */
export function createMeter(limits: Limits, request: Request, peer: Peer): () => RateLimit.Verdict {
  const { rateLimit, now, paidPerMinute, messageMaxBytes } = limits
  const key = clientOf(request, peer(), limits.trustProxy)
  const announced = Number(request.headers.get('content-length') ?? messageMaxBytes)
  let isFirst = true
  return () => {
    const verdict = rateLimit.take(`mcp ${key}`, paidPerMinute, now())
    if (!verdict.ok || !isFirst) return verdict
    isFirst = false
    const units = Math.ceil(Math.min(announced || 1, messageMaxBytes) / unitBytes)
    const bytes = rateLimit.take(`mcp bytes ${key}`, bytesPerMinute / unitBytes, now(), units)
    return bytes.ok ? verdict : bytes
  }
}
