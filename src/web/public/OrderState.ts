import type { Tone } from '../parts'

type Row = { text: string; tone?: Tone; detail?: string }

/**
 * What pages say of an order in each state; an order with a `tone` has ended. `detail` has members of the
 * order's JSON in braces. The script has this table from the page of the stocks.
 */
export const orderStates: Readonly<Record<string, Row>> = {
  settling: { text: 'The payment is being confirmed.' },
  settled: { text: 'The payment is confirmed, and your tokens are bought next.' },
  swapping: { text: 'Your tokens are being bought, usually within a minute.' },
  refunding: { text: 'The order could not be filled, and your money is on its way back.' },
  delivered: {
    tone: 'good',
    text: 'The order is delivered: the tokens are at your address.',
    detail: 'You received {deliveredShares} {symbol} for {total} {coin}.',
  },
  refunded: {
    tone: 'fair',
    text: 'The order was not filled, and the whole amount came back to you.',
    detail: '{returned} {coin} came back to your address. You can order again.',
  },
  held: {
    tone: 'fair',
    text: 'The order is held until its operator decides. You need not pay again.',
    detail:
      'The money waits with the operator, who delivers the tokens or sends it back. For questions, name this order.',
  },
  failed: { tone: 'bad', text: 'The transfer did not happen. Nothing was paid.' },
}

/** `detail` with the values of an order; script/outcome.js does the same. Amounts have six digits. */
export function detailOf(order: Readonly<Record<string, string>>, coin: string): string {
  const { usdg = '', total = usdg, returned = total } = order
  const values: Readonly<Record<string, string>> = { ...order, coin, total, returned }
  const { detail = '' } = orderStates[order.status ?? ''] ?? {}
  return detail.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = values[name] ?? ''
    return /^[0-9.]+$/.test(value) ? String(Number(Number(value).toPrecision(6))) : value
  })
}
