import * as Json from '../../protocol/Json'
import { type GatewayClient, GatewayError } from './gateway'
import * as Listing from './Listing'
import type { Limits } from './Sentences'

/** The tools of the gateway as they were listed last. */
export type Catalogue = ReturnType<typeof createCatalogue>

const pagesMax = 64

/** `own`: names of tools that the gateway must not replace. */
export function createCatalogue(
  gateway: GatewayClient,
  limits: Limits,
  own: readonly string[],
  warn: (message: string) => void,
) {
  const prices = new Map<string, bigint>()
  let last: Listing.Tool[] | undefined
  return {
    /** Lists them now; the last list when the gateway does not answer. Throws a GatewayError. */
    async list(signal: AbortSignal): Promise<Listing.Tool[]> {
      try {
        const listed = await readAll(gateway, own, signal, warn)
        for (const { tool, priceMicros } of listed)
          if (priceMicros !== undefined) prices.set(tool.name, priceMicros)
        last = listed.map((each) => Listing.withLimit(each, limits))
      } catch (error) {
        if (!(error instanceof GatewayError) || last === undefined) throw error
        warn(`the last list of tools is used: ${error.message}`)
      }
      return last
    },
    /** Listed price of a tool, in millionths of a dollar; undefined while it is not known. */
    priceOf: (name: string) => prices.get(name),
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
    const next = Json.member(result, 'nextCursor')
    if (typeof next !== 'string' || next === '' || next === cursor) return end()
    cursor = next
  }
  return end(`${pagesMax} pages`)
}
