import type { Address } from 'viem'
import * as Answer from './Answer'
import type { Result } from './context'
import type { Tool } from './Listing'
import { dollars, type Limits, resetOf } from './Sentences'
import { callOf, type Spending, type Stored } from './spending'
import * as Text from './Text'

/** The tool that reports what the wallet may still spend. */

export type Budget = {
  spending: Spending
  limits: Limits
  payer: Address
  /** Origin of the gateway. */
  gateway: string
  /** Unix ms. */
  now: () => number
}

export const tool: Tool = {
  name: 'turnpike_budget',
  title: 'What the wallet may spend',
  description:
    'Says what was spent today, the limits, when they reset, and which calls were paid and not ' +
    'answered yet. Costs nothing.',
  inputSchema: { type: 'object', properties: {}, additionalProperties: false },
  annotations: { readOnlyHint: true, destructiveHint: false, openWorldHint: true },
}

const argumentsMax = 400
const unfinishedMax = 10

export function describeBudget({ spending, limits, payer, gateway, now }: Budget): Result {
  const { spentMicros, payments } = spending.today()
  const left = limits.perDayMicros - spentMicros
  // The file is shared: calls at other gateways count, but only those of this gateway are listed.
  const isOwn = ({ call, tool, args }: Stored) =>
    call === callOf({ origin: gateway, payer }, tool, args)
  const unfinished = spending.unfinished().filter(isOwn).slice(0, unfinishedMax)
  const lines = [
    `The wallet ${payer} pays for the tools of ${gateway}.`,
    `Limits: ${limits.perCall} USD for one call, ${limits.perDay} USD a day (UTC).`,
    `Today: ${dollars(spentMicros)} USD in ${payments} payments, ` +
      `${dollars(left > 0n ? left : 0n)} USD left. Resets at ${resetOf(now())}.`,
    ...unfinished.map(describe),
  ]
  return { content: [Answer.note(lines.join('\n'))] }
}

function describe({ state, tool: name, args, amount }: Stored): string {
  const what = state === 'redeemable' ? 'paid and not delivered' : 'signed, its end is not known'
  return (
    `Unfinished, ${what}: ${name} with ${Text.line(args, argumentsMax)}, ${amount}. The same call ` +
    'costs nothing more.'
  )
}
