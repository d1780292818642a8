import type { Envelope } from '../../paywall/answer/remainder'
import * as Json from '../../protocol/Json'
import * as Problem from '../../protocol/Problem'
import * as X402 from '../../protocol/X402'
import { formats } from '../redact/redact'
import { answerMaxBytes } from './outgoing'
import * as Payment from './Payment'

/** An error of JSON-RPC. The SDK sends these members. */
export class McpFault extends Error {
  override readonly name = 'McpFault'
  readonly code: number
  readonly data: unknown

  constructor(code: number, message: string, data?: unknown) {
    super(message)
    this.code = code
    this.data = data
  }
}

export const invalidParams = -32602
export const methodNotFound = -32601
const paymentRequired = -32042
const verificationFailed = -32043

export type ToolResult = {
  content: ToolContent[]
  isError?: boolean
  structuredContent?: Record<string, unknown>
  _meta?: Record<string, unknown>
}

type AnswerOptions = {
  /** How the call paid. */
  kind: Payment.Kind
  /** Request payment by an error, as the MPP transport does, not by a tool result. */
  speaksMpp: boolean
  /** Absolute URL of the requested resource. */
  url: string
  /** What a client over HTTP could have without a payment; '' for nothing. */
  overHttp: string
  /** Reserves memory until the message is sent; false when there is none. */
  reserve: Envelope['reserve']
  /** Result for a replay when no memory is free. */
  busy: ToolResult
}

/**
 * The gateway's answer as the result of a tool call. Throws an McpFault when payment is required.
 */
export async function toResult(response: Response, options: AnswerOptions): Promise<ToolResult> {
  const receipt = Payment.ofHeader(response.headers.get('payment-receipt'))
  const settled = Payment.ofHeader(response.headers.get('payment-response'))
  // Of a route with `again`: the same call with it has the answer again.
  const token = response.headers.get('payment-redeem')
  const meta = {
    ...(receipt === undefined ? {} : { [Payment.receiptKey]: receipt }),
    ...(settled === undefined ? {} : { [Payment.x402ResponseKey]: settled }),
    ...(response.headers.has('idempotency-replayed') ? { [Payment.replayedKey]: true } : {}),
    ...(token === null ? {} : { [Payment.redeemKey]: token }),
  }
  if (receipt !== undefined || settled?.success === true) return bought(response, options, meta)
  const body = problemOf(await response.text(), response.status)
  return response.status === 402 ? unpaid(response, options, body, meta) : failed(body, meta)
}

/** The whole answer of the upstream. */
async function bought(
  response: Response,
  options: AnswerOptions,
  meta: Record<string, unknown>,
): Promise<ToolResult> {
  let held = response
  // The memory of a new answer is already reserved; that of a stored answer is not.
  if (Payment.replayedKey in meta) {
    const bytes = await response.bytes()
    if (!options.reserve(bytes.byteLength)) return options.busy
    held = new Response(bytes, response)
  }
  const { content, truncated } = await readContent(held, options.url, options.reserve)
  const _meta = { ...meta, ...(truncated ? { [Payment.truncatedKey]: true } : {}) }
  if (response.ok) return { content, _meta }
  // In an error this note comes first. Otherwise x402 clients would pay an upstream that answers
  // with an offer of its own.
  const note = { type: 'text' as const, text: `The upstream answered ${response.status}.` }
  return { isError: true, content: [note, ...content], _meta }
}

const offerMembers = ['x402Version', 'error', 'resource', 'accepts', 'extensions'] as const

function unpaid(
  response: Response,
  options: AnswerOptions,
  body: Json.JsonObject,
  meta: Record<string, unknown>,
): ToolResult {
  const offers: Record<string, Json.Json> = {}
  const required = X402.inBody(body)
  const { x402: _, ...rest } = body
  const problem: Record<string, Json.Json> = rest
  for (const name of offerMembers) {
    offers[name] = required[name] ?? null
    delete problem[name]
  }
  const header = Payment.ofHeader(response.headers.get('payment-required'))
  offers.extensions = Payment.withSalt(offers.extensions ?? null, header)
  const { resource } = offers
  const description = Json.isObject(resource) ? Json.optional(resource, 'description', 'text') : ''
  const authenticate = response.headers.get('www-authenticate')
  const challenges = Payment.challenges(authenticate, problem.challenges, description ?? '')
  delete problem.challenges
  const { overHttp } = options
  const texts = [JSON.stringify(offers), overHttp].filter((text) => text !== '')
  const data = { httpStatus: 402, challenges, problem, ...(overHttp !== '' && { overHttp }) }
  if (options.kind !== 'mpp' && (options.kind === 'x402' || !options.speaksMpp))
    return {
      isError: true,
      structuredContent: offers,
      content: texts.map((text) => ({ type: 'text', text })),
      _meta: { ...meta, [Payment.requiredKey]: data },
    }
  const { code, detail } = problem
  if (options.kind !== 'mpp')
    // x402 clients that read errors expect their offers under this name.
    throw new McpFault(paymentRequired, 'Payment Required', { ...data, x402: offers })
  if (code === 'malformed-credential')
    throw new McpFault(invalidParams, 'Invalid params', { detail, ...data })
  const failure = { reason: code, detail }
  throw new McpFault(verificationFailed, 'Payment Verification Failed', { ...data, failure })
}

/** A problem that this endpoint raises without calling the gateway. */
export function refused(problem: Problem.ProblemError, baseUrl: string): ToolResult {
  return failed(problemOf(JSON.stringify(Problem.toJson(problem, baseUrl)), problem.status), {})
}

/** A problem of ours, as text for the model and as data for programs. */
function failed(problem: Json.JsonObject, meta: Record<string, unknown>): ToolResult {
  const { title, detail, invalidParams: faults } = problem
  const named = Array.isArray(faults) ? ` ${JSON.stringify(faults)}` : ''
  return {
    isError: true,
    content: [{ type: 'text', text: `${title}: ${detail}${named}` }],
    structuredContent: { ...problem },
    _meta: meta,
  }
}

/** Our own problem document, which is always an object. */
function problemOf(text: string, status: number): Json.JsonObject {
  const value: Json.Json = text === '' ? {} : JSON.parse(text)
  return Json.isObject(value) ? value : { status, title: 'Error', detail: 'The request failed.' }
}

/** A part of a tool result. */
type ToolContent =
  | { type: 'text'; text: string }
  | { type: 'image' | 'audio'; data: string; mimeType: string }
  | { type: 'resource'; resource: { uri: string; mimeType: string; blob: string } }

const textual =
  /^(?:text\/|application\/(?:[\w.+-]*(?:json|xml|javascript|yaml|x-ndjson)|x-www-form-urlencoded)\b|image\/svg)/i
const playable = /^(image|audio)\/[\w.+-]+/i

/**
 * A response's body as the content of a tool result. Binary data is base64. `reserve` reserves
 * memory for what is decompressed. Without memory the body stays compressed.
 */
export async function readContent(
  response: Response,
  url: string,
  reserve: Envelope['reserve'],
): Promise<{ content: ToolContent[]; truncated: boolean }> {
  const type = response.headers.get('content-type') ?? 'application/octet-stream'
  const encoding = response.headers.get('content-encoding')
  const raw = await read(response.body)
  const plain = encoding === null ? raw : await decode(raw, encoding, reserve)
  const { bytes, truncated } = plain ?? raw
  if (bytes.byteLength === 0) return { content: [], truncated }
  const text = plain === undefined ? undefined : textOf(type, bytes, truncated)
  if (text !== undefined) return { content: [{ type: 'text', text }], truncated }
  const data = Buffer.from(bytes).toString('base64')
  const [mimeType = '', kind] = playable.exec(type) ?? []
  if (plain !== undefined && (kind === 'image' || kind === 'audio'))
    return { content: [{ type: kind, data, mimeType }], truncated }
  const resource = { uri: url, mimeType: type.split(';', 1)[0] ?? type, blob: data }
  return { content: [{ type: 'resource', resource }], truncated }
}

type Read = { bytes: Uint8Array; truncated: boolean }

/** The first bytes of a body. A body that breaks off counts as complete: it was paid for. */
async function read(body: ReadableStream<Uint8Array> | null): Promise<Read> {
  const chunks: Uint8Array[] = []
  let size = 0
  let truncated = false
  const reader = body?.getReader()
  try {
    for (;;) {
      const { done = true, value } = (await reader?.read()) ?? {}
      if (done || value === undefined) break
      chunks.push(value)
      size += value.byteLength
      if (size <= answerMaxBytes) continue
      truncated = true
      reader?.cancel().catch(() => {})
      break
    }
  } catch {
    truncated = true
  }
  return { bytes: Buffer.concat(chunks).subarray(0, answerMaxBytes), truncated }
}

/** Undefined when the encoding is unknown or wrong, or when no memory is free. */
async function decode(
  raw: Read,
  encoding: string,
  reserve: Envelope['reserve'],
): Promise<Read | undefined> {
  const format = formats.get(encoding.trim().toLowerCase())
  if (format === undefined) return encoding === 'identity' ? raw : undefined
  const stream = new Blob([new Uint8Array(raw.bytes)])
    .stream()
    .pipeThrough(new DecompressionStream(format))
  const plain = await read(stream)
  // Without any output, the data had another encoding.
  if (plain.truncated && plain.bytes.byteLength === 0) return undefined
  if (!reserve(plain.bytes.byteLength)) return undefined
  return { bytes: plain.bytes, truncated: raw.truncated || plain.truncated }
}

function textOf(type: string, bytes: Uint8Array, truncated: boolean): string | undefined {
  if (!textual.test(type)) return undefined
  const charset = /charset="?([\w-]+)/i.exec(type)?.[1] ?? 'utf-8'
  try {
    const decoder = new TextDecoder(charset as Bun.Encoding, { fatal: true })
    return decoder.decode(bytes, { stream: truncated })
  } catch {
    return undefined
  }
}
