import { readFileSync } from 'node:fs'
import { format, parseConfig } from '../../config/merchants'
import * as Route from '../../gateway/Route'
import { quoteFor } from '../../gateway/upstream/metering'
import * as Charge from '../../meter/Charge'
import type { Meter } from '../../meter/Meter'
import type { Quote } from '../../meter/Quote'
import { createReader } from '../../meter/Reader'
import type { Usage } from '../../meter/Usage'
import * as Amount from '../../protocol/Amount'
import { CommandError } from '../Command'
import type { Run } from '../commands'

/** Prints the cost of a stored answer, which the upstream sent as JSON or as an event stream. */
export function meterAnswer(options: Run<'meter'>): number {
  for (const line of describe(options)) options.out(line)
  return 0
}

/** Why a file or the request is at fault, in lines. */
function fault(...lines: readonly string[]): CommandError {
  return new CommandError(lines.join('\nturnpike: '))
}

function describe(options: Run<'meter'>): string[] {
  const { file, env, route = '', operand: answer, request } = options
  const { config, faults } = parseConfig(read(file).toString(), { file, env })
  if (config === undefined) throw fault(...faults.map(format))
  const match = Route.match(Route.compile(config.merchants), `/m/${route}`)
  if (match === undefined) throw fault(`${file} sells no route "${route}"`)
  const { meter } = match.route
  if (meter === undefined) throw fault(`${route} has a fixed price and no meter`)
  const quote = request === undefined ? anyRequest(meter) : quoteFor(match, read(request))
  if (quote === undefined) throw fault(`${route} is not forwarded`)
  if (quote.faults.length > 0)
    throw fault(...quote.faults.map(({ name, reason }) => `${name} ${reason}`))
  const usage = usageOf(meter, read(answer))
  const charge = Charge.of(meter, quote, usage)
  return [
    `route    ${route}, preset ${meter.preset}`,
    `models   ${quote.models.join(', ') || 'none'}`,
    `ceiling  ${shown(quote.ceilingAtomic)}`,
    `usage    ${usage.kind === 'used' ? listed(usage.counts) : usage.kind}`,
    `charged  ${listed(charge.units)}`,
    `charge   ${shown(charge.amountAtomic)} by ${charge.by}${charge.reason ? `: ${charge.reason}` : ''}`,
  ]
}

/** Without a request, every model may have answered and the ceiling is the price. */
function anyRequest(meter: Meter): Quote {
  const models = Object.keys(meter.models)
  return { ceilingAtomic: meter.priceAtomic, models, body: new Uint8Array(), faults: [] }
}

/** Stored answers have no head, so a text that begins like JSON is a whole answer. */
export function usageOf(meter: Meter, bytes: Uint8Array): Usage {
  const isJson = /^\ufeff?\s*[[{]/.test(new TextDecoder().decode(bytes.subarray(0, 64)))
  const headers = new Headers({ 'content-type': isJson ? 'application/json' : 'text/event-stream' })
  const reader = createReader(meter, { status: 200, headers })
  reader.add(bytes)
  return reader.end()
}

function read(file: string): Buffer {
  try {
    return readFileSync(file)
  } catch {
    throw fault(`${file} cannot be read`)
  }
}

function listed(counts: Readonly<Record<string, number>>): string {
  const shown = Object.entries(counts).map(([unit, count]) => `${unit} ${count}`)
  return shown.join(', ') || 'nothing'
}

function shown(atomic: bigint): string {
  return `${Amount.toDecimal(atomic, 6)} USD (${atomic} atomic)`
}
