import * as Json from '../../protocol/Json'
import { type GatewayClient, GatewayError } from './gateway'
import * as Listing from './Listing'
import type { Limits } from './Sentences'

/** The tools of the gateway as they were listed last. */
export type Catalogue = ReturnType<typeof createCatalogue>

const pagesMax = 64

/** The gateway sells the pass of a route at its path with `/pass`. */
const passSuffix = '-pass'

/** `own`: names of tools that the gateway must not replace. */
export function createCatalogue(
  gateway: GatewayClient,
  limits: Limits,
  own: readonly string[],
  warn: (message: string) => void,
) {
  const prices = new Map<string, bigint>()
  const entitled = new Set<string>()
  let last: Listing.Tool[] | undefined
  return {
    /** Lists them now; the last list when the gateway does not answer. Throws a GatewayError. */
    async list(signal: AbortSignal): Promise<Listing.Tool[]> {
      try {
        const listed = await readAll(gateway, own, signal, warn)
        entitled.clear()
        for (const { tool, priceMicros, isEntitled } of listed) {
          if (priceMicros !== undefined) prices.set(tool.name, priceMicros)
          if (isEntitled) entitled.add(tool.name)
        }
        last = listed.map((each) => Listing.withLimit(each, limits))
      } catch (error) {
        if (!(error instanceof GatewayError) || last === undefined) throw error
        warn(`the last list of tools is used: ${error.message}`)
      }
      return last
    },
    /** Listed price of a tool, in millionths of a dollar; undefined while it is not known. */
    priceOf: (name: string) => prices.get(name),
    /** Whether a wallet may have a call of a tool without a payment. */
    isEntitled: (name: string) => entitled.has(name),
    /** The tool that sells a pass for the calls of another one. */
    passOf: (name: string) =>
      entitled.has(name) ? last?.find((tool) => tool.name === `${name}${passSuffix}`) : undefined,
    /** Whether a tool sells a pass. */
    isPass: (name: string) =>
      name.endsWith(passSuffix) && entitled.has(name.slice(0, -passSuffix.length)),
    /** Notes a price that the model was told. */
    notePrice: (name: string, micros: bigint) => void prices.set(name, micros),
  }
}

async function readAll(
  gateway: GatewayClient,
  own: readonly string[],
  signal: AbortSignal,
  warn: (message: string) => void,
): Promise<Listing.Listed[]> {
  const taken = new Set(own)
  const reserved = new Set(own.map(Listing.looksOf))
  const isReserved = (name: string) => reserved.has(Listing.looksOf(name))
  const listed: Listing.Listed[] = []
  let cursor: string | undefined
  let size = 0
  let left = 0
  const end = (cut?: string) => {
    if (left > 0)
      warn(`${left} tools are left out: a name is taken, or a name or schema is invalid`)
    if (cut !== undefined) warn(`the list is cut after ${cut}`)
    return listed
  }
  for (let page = 0; page < pagesMax; page++) {
    const result = await gateway.request('tools/list', cursor ? { cursor } : {}, signal)
    const entries = Json.member(result, 'tools')
    for (const entry of Array.isArray(entries) ? entries : []) {
      const read = Listing.read(entry)
      if (read === undefined || taken.has(read.tool.name) || isReserved(read.tool.name)) {
        left++
        continue
      }
      size += read.size
      if (listed.length >= Listing.toolsMax || size > Listing.listMaxBytes)
        return end(`${listed.length} tools`)
      taken.add(read.tool.name)
      listed.push(read)
    }
    const next = Json.text(result, 'nextCursor')
    if (!next || next === cursor) return end()
    cursor = next
  }
  return end(`${pagesMax} pages`)
}
