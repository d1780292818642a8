import { entitlementsKey } from '../../gateway/mcp/Payment'
import * as Amount from '../../protocol/Amount'
import * as Json from '../../protocol/Json'
import * as Text from './Text'

/** The tools of a gateway for the client of this wallet. */

export type Tool = {
  name: string
  title?: string
  description: string
  inputSchema: { type: 'object'; [member: string]: Json.Json }
  annotations: { readOnlyHint: boolean; destructiveHint: false; openWorldHint: true }
}

export type Listed = {
  tool: Tool
  /** The most that one call costs as listed, in millionths of a dollar; undefined: not named. */
  priceMicros: bigint | undefined
  /** Whether a wallet may have a call without a payment, by a sign-in over HTTP. */
  isEntitled: boolean
  /** Bytes of the tool in a message, about. */
  size: number
}

const namePattern = /^[A-Za-z0-9_.-]{1,128}$/
const keyPattern = /^[^\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]{1,128}$/u
const titleMax = 200
const descriptionMax = 4096
const schemaTextMax = 4096
const schemaMaxBytes = 64 * 1024

/** Most tools, and most bytes of all of them: a client puts them into the context of a model. */
export const toolsMax = 512
export const listMaxBytes = 4 * 1024 * 1024

/** A tool of the gateway's list. Undefined when a client would refuse the whole list because of it. */
export function read(entry: Json.Json): Listed | undefined {
  if (!Json.isObject(entry)) return undefined
  const name = Json.text(entry, 'name')
  if (name === undefined || !namePattern.test(name)) return undefined
  const inputSchema = schemaOf(Json.member(entry, 'inputSchema'))
  if (inputSchema === undefined) return undefined
  const title = textOf(entry, 'title', titleMax)
  const tool: Tool = {
    name,
    ...(title === '' ? {} : { title }),
    description: textOf(entry, 'description', descriptionMax),
    inputSchema,
    // Every call moves money, whatever the gateway says.
    annotations: { readOnlyHint: false, destructiveHint: false, openWorldHint: true },
  }
  const entitlements = Json.member(Json.child(entry, '_meta'), entitlementsKey)
  const isEntitled = Json.isObject(entitlements)
  return { tool, priceMicros: priceOf(entry), isEntitled, size: JSON.stringify(tool).length }
}

/** What a name looks like to a person or a model: equal for names that are easily confused. */
export function looksOf(name: string): string {
  const letters = name.toLowerCase().replace(/[_.-]/g, '')
  return letters.replaceAll('rn', 'm').replace(/[1l]/g, 'i').replaceAll('0', 'o')
}

/** The tool with a note for models when its price is above the limit of a call. */
export function withLimit(
  { tool, priceMicros }: Listed,
  limits: { perCallMicros: bigint; perCall: string },
): Tool {
  if (priceMicros === undefined || priceMicros <= limits.perCallMicros) return tool
  const note =
    `This wallet signs at most ${limits.perCall} USD for one call, which is below that price: a call ` +
    'is refused when it costs more.'
  return { ...tool, description: `${tool.description} ${note}`.trim() }
}

function textOf(entry: Json.JsonObject, name: string, most: number): string {
  return Text.clean(Json.text(entry, name) ?? '', most).trim()
}

/** A schema that every client accepts: the members that MCP defines have their types. */
function schemaOf(value: Json.Json | undefined): Tool['inputSchema'] | undefined {
  if (!Json.isObject(value) || value.type !== 'object') return undefined
  const { properties = {}, required = [] } = value
  if (!Json.isObject(properties) || !Object.values(properties).every(Json.isObject))
    return undefined
  if (!Array.isArray(required) || !required.every((each) => typeof each === 'string'))
    return undefined
  const schema = cleaned(value)
  if (!Json.isObject(schema) || JSON.stringify(schema).length > schemaMaxBytes) return undefined
  return { ...schema, type: 'object' }
}

/**
 * The same JSON with clean texts. Undefined when a name is not clean, because names cannot be
 * changed.
 */
function cleaned(value: Json.Json): Json.Json | undefined {
  if (typeof value === 'string') return Text.clean(value, schemaTextMax)
  if (typeof value !== 'object' || value === null) return value
  if (Array.isArray(value)) {
    const entries = value.map(cleaned)
    return entries.every((entry) => entry !== undefined) ? entries : undefined
  }
  const members: Record<string, Json.Json> = {}
  for (const [name, member] of Object.entries(value)) {
    const kept = cleaned(member)
    if (kept === undefined || !keyPattern.test(name)) return undefined
    members[name] = kept
  }
  return members
}

/** The price that turnpike names in `_meta`: a fixed amount, or the most of a dynamic one. */
function priceOf(entry: Json.JsonObject): bigint | undefined {
  const info = Json.child(Json.child(entry, '_meta'), 'turnpike/x-payment-info')
  const price = Json.child(info, 'price')
  const amount = Json.member(price, 'max') ?? Json.member(price, 'amount')
  if (typeof amount !== 'string' || Json.member(price, 'currency') !== 'USD') return undefined
  try {
    return Amount.fromDecimal(amount, 6)
  } catch {
    return undefined
  }
}
