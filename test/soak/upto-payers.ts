import { settlementOf } from '../harness/buyer'
import { connect, request } from '../harness/raw'
import { payUpto, uptoOffer } from '../harness/upto'
import type { ByUse, Purchase } from './purchase'
import type { Random } from './random'
import type { Payer, Site } from './setup'

/**
 * Buyers of the scheme `upto`: each signs one ceiling per request, for a whole answer or a stream.
 * Some leave in the middle. One that has nothing presents the same credential again, until it has
 * the answer or a final refusal.
 */

/** A share of the purchases of payers that have approved Permit2. */
export const byUseShare = 0.6

export function planByUse(
  { payer, site, serial, url }: { payer: Payer; site: Site; serial: string; url: string },
  random: Random,
): Purchase {
  const isStream = random.chance(0.5)
  const body = JSON.stringify({
    model: 'm',
    max_tokens: random.pick([500, 1_000, 2_000]),
    ...(isStream ? { stream: true } : {}),
    messages: [{ role: 'user', content: serial }],
  })
  return {
    serial,
    payer,
    site,
    scheme: 'upto',
    url: `${url}/m/model/chat?n=${serial}`,
    init: {
      method: 'POST',
      body,
      headers: {
        'content-type': 'application/json',
        ...(random.chance(0.2) ? { 'idempotency-key': `key-${serial}` } : {}),
      },
    },
    amountAtomic: 0n,
    nonce: undefined,
    signedAt: undefined,
    said: [],
    received: [],
    redeems: false,
    end: 'open',
    byUse: {
      isStream,
      leaveAfterMs: random.chance(0.2) ? random.between(5, 700) : undefined,
      hasLeft: false,
      bytes: 0,
    },
  }
}

/** The credential for the offered ceiling, which becomes the purchase's amount. */
export async function signByUse(
  purchase: Purchase,
  required: Parameters<typeof payUpto>[0],
  random: Random,
): Promise<{ nonce: `0x${string}`; headers: Record<string, string> } | undefined> {
  const { site, payer } = purchase
  const offer = uptoOffer(required, site.id)
  if (offer === undefined) return undefined
  purchase.amountAtomic = BigInt(offer.amount)
  const nonce = random.bytes32()
  const value = await payUpto(required, payer.account, { network: site.id, nonce })
  return { nonce, headers: { 'payment-signature': value } }
}

export type Shown =
  | { kind: 'whole'; response: Response; text: string }
  /** The buyer left, and has this many bytes. */
  | { kind: 'left'; bytes: number }

/**
 * Sends the request once; rejects when the connection broke. By a socket of its own: `fetch` drops
 * bytes that arrived when the connection breaks before they are read.
 */
export function fetchByUse(
  { url, init }: Purchase,
  byUse: ByUse,
  headers: Record<string, string>,
  limitMs: number,
): Promise<Shown> {
  const { promise, resolve, reject } = Promise.withResolvers<Shown>()
  const { pathname, search } = new URL(url)
  const body = String(init.body)
  const all = {
    ...(init.headers as Record<string, string>),
    ...headers,
    'content-length': String(body.length),
    connection: 'close',
  }
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}`)
  const socket = connect(url, request(pathname + search, lines, 'POST') + body)
  const chunks: Buffer[] = []
  let isLeaving = false
  const leave = () => {
    isLeaving = true
    socket.destroy()
  }
  const limit = setTimeout(() => socket.destroy(), limitMs)
  const leaveAfterMs = byUse.hasLeft ? undefined : byUse.leaveAfterMs
  const timer = leaveAfterMs === undefined ? undefined : setTimeout(leave, leaveAfterMs)
  socket.on('data', (chunk) => void chunks.push(Buffer.from(chunk)))
  socket.on('close', () => {
    clearTimeout(limit)
    clearTimeout(timer)
    const { response, text, isWhole } = readAnswer(Buffer.concat(chunks).toString('latin1'))
    if (response?.status === 200) byUse.bytes = Math.max(byUse.bytes, text.length)
    // Who leaves with a whole answer has its redeem token.
    if (response !== undefined && isWhole) resolve({ kind: 'whole', response, text })
    else if (isLeaving) {
      byUse.hasLeft = true
      resolve({ kind: 'left', bytes: text.length })
    } else reject(new Error('the connection broke'))
  })
  return promise
}

/** As much of an answer as arrived, one character a byte. */
function readAnswer(all: string): {
  response: Response | undefined
  text: string
  isWhole: boolean
} {
  const end = all.indexOf('\r\n\r\n')
  if (end === -1) return { response: undefined, text: '', isWhole: false }
  const [first = '', ...lines] = all.slice(0, end).split('\r\n')
  const headers = new Headers()
  for (const line of lines) {
    const colon = line.indexOf(':')
    headers.append(line.slice(0, colon), line.slice(colon + 1).trim())
  }
  const response = new Response(null, { status: Number(first.split(' ')[1]), headers })
  const rest = all.slice(end + 4)
  if (headers.get('transfer-encoding') !== 'chunked')
    return { response, text: rest, isWhole: rest.length === Number(headers.get('content-length')) }
  let text = ''
  for (let at = 0; ; ) {
    const line = rest.indexOf('\r\n', at)
    const size = Number.parseInt(rest.slice(at, line === -1 ? undefined : line), 16)
    if (line === -1 || Number.isNaN(size)) return { response, text, isWhole: false }
    if (size === 0) return { response, text, isWhole: true }
    text += rest.slice(line + 2, line + 2 + size)
    at = line + 2 + size + 2
  }
}

/** The members of an answer: those of its first event for a stream. */
export function membersOf(text: string): Record<string, unknown> {
  const [, first] = /^data: (.*)$/m.exec(text) ?? []
  return JSON.parse(first ?? text)
}

/** What the head of an answer says was settled; undefined for a stream that is settled at its end. */
export function settledOf(response: Response): { amount: string; transaction: string } | undefined {
  const { amount, transaction } = settlementOf(response)
  return amount === undefined
    ? undefined
    : { amount: String(amount), transaction: String(transaction) }
}
