import * as Payment from '../../gateway/mcp/Payment'
import * as Json from '../../protocol/Json'
import * as Text from './Text'

/** The gateway's answer to a call of a tool. */

export type Problem = ReturnType<typeof problemOf>

export type Answer =
  /** The call was paid for and delivered. */
  | { kind: 'delivered'; result: Json.JsonObject; settled: Json.JsonObject | undefined }
  /** The gateway asks for a payment. `problem`: why it refused the one that was presented. */
  | { kind: 'offers'; required: Json.JsonObject; problem: Problem; invalidParams: string }
  /** The gateway refuses the call. */
  | { kind: 'problem'; result: Json.JsonObject; problem: Problem }
  /** Anything else, such as a tool that costs nothing. */
  | { kind: 'free'; result: Json.JsonObject }

const visible = /^[\x21-\x7e]{1,512}$/
const hash = /^0x[0-9a-fA-F]{64}$/

/** Reads a result. Never throws: a member of another type counts as absent. */
export function of(result: Json.JsonObject): Answer {
  const meta = Json.child(result, '_meta')
  const settled = Json.child(meta, Payment.x402ResponseKey)
  const receipt = Json.member(meta, Payment.receiptKey)
  const isSettled = Json.member(settled, 'success') === true
  if (isSettled || Json.isObject(receipt))
    return { kind: 'delivered', result, settled: isSettled ? settled : undefined }
  if (Json.member(result, 'isError') !== true) return { kind: 'free', result }
  const structured = Json.child(result, 'structuredContent')
  if (Array.isArray(Json.member(structured, 'accepts'))) {
    const said = Json.child(Json.child(meta, Payment.requiredKey), 'problem')
    const required = withoutLongExtensions(structured)
    const [problem, invalidParams] = [problemOf(said), faultsOf(said)]
    return { kind: 'offers', required, problem, invalidParams }
  }
  if (Json.text(structured, 'code') === undefined) return { kind: 'free', result }
  return { kind: 'problem', result, problem: problemOf(structured) }
}

/**
 * The offers without the extensions that describe the resource: a client echoes all of them, and
 * they do not fit into the header that the gateway makes of a payment.
 */
function withoutLongExtensions(required: Json.JsonObject): Json.JsonObject {
  const { extensions: _, ...rest } = required
  const salt = Json.member(Json.child(required, 'extensions'), 'mppx')
  return salt === undefined ? rest : { ...rest, extensions: { mppx: salt } }
}

function problemOf(json: Json.JsonObject) {
  const redeem = Json.child(json, 'redeem')
  const token = Json.text(redeem, 'token')
  const attempts = Json.member(redeem, 'attempts')
  return {
    code: textOf(json, 'code') || 'refused',
    detail: textOf(json, 'detail'),
    reason: textOf(json, 'reason'),
    transaction: transactionOf(json),
    redeem:
      token !== undefined && visible.test(token)
        ? {
            token,
            until: textOf(redeem, 'until'),
            /** Redemptions that are left. */
            attempts: typeof attempts === 'number' ? attempts : 1,
          }
        : undefined,
  }
}

/** The faults of the arguments, which a 402 names before a payment. */
function faultsOf(problem: Json.JsonObject): string {
  const faults = Json.member(problem, 'invalidParams')
  if (!Array.isArray(faults)) return ''
  const named = faults
    .filter(Json.isObject)
    .map((fault) => `${textOf(fault, 'name')}: ${textOf(fault, 'reason')}`)
  return Text.line(named.join('; '), 1000)
}

function textOf(parent: Json.JsonObject, name: string): string {
  return Text.line(Json.text(parent, name) ?? '', 300)
}

/** The hash of the transaction that a settlement response or a problem names. */
export function transactionOf(settled: Json.JsonObject | undefined): string | undefined {
  return hash.exec((settled && Json.text(settled, 'transaction')) ?? '')?.[0]
}

export type Content = Readonly<Record<string, Json.Json>>

/** A client of the SDK closes the connection at a message of 10 MiB. */
const contentMaxBytes = 8 * 1024 * 1024
const shortened = 1024 * 1024

/** The content of a result in the forms that MCP defines, short enough for every client. */
export function contentOf(result: Json.JsonObject): Content[] {
  const content = Json.member(result, 'content')
  const items = (Array.isArray(content) ? content : []).map(itemOf)
  const bytes = Buffer.byteLength(JSON.stringify(items))
  if (bytes <= contentMaxBytes) return items
  const text = JSON.stringify(items[0]?.text ?? items).slice(0, shortened)
  return [
    { type: 'text', text },
    note(`The answer has ${bytes} bytes, too many for one message: this is the start of its JSON.`),
  ]
}

/** A text of ours. */
export function note(text: string): Content {
  return { type: 'text', text }
}

function itemOf(item: Json.Json): Content {
  if (Json.isObject(item)) {
    const { type, text, data, mimeType } = item
    const resource = Json.child(item, 'resource')
    if (type === 'text' && typeof text === 'string') return { type, text }
    const isMedia = type === 'image' || type === 'audio'
    if (isMedia && typeof data === 'string' && typeof mimeType === 'string')
      return { type, data, mimeType }
    const { uri, blob, text: body } = resource
    const held = typeof blob === 'string' ? { blob } : typeof body === 'string' && { text: body }
    if (type === 'resource' && typeof uri === 'string' && held) {
      const kind = resource.mimeType
      const named = typeof kind === 'string' && { mimeType: kind }
      return { type, resource: { uri, ...held, ...named } }
    }
  }
  return { type: 'text', text: JSON.stringify(item) }
}
