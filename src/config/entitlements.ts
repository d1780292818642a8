import * as Pass from '../protocol/Pass'
import * as Time from '../protocol/Time'
import type { Route } from './Config'
import { field, optional, reportKey, type Table } from './reader'
import * as V from './values'

/** What a wallet may have at a route without a further payment: `again`, `trial` and `pass`. */

export function readAgain(table: Table): Route['again'] {
  const forMs = optional(table, 'again', V.duration)
  const max = field(table, 'again_max', V.integer(1, 1000), 5)
  if (table.raw.again === undefined && table.raw.again_max !== undefined)
    reportKey(table, 'again_max', 'again_max needs again, such as again = "24h"')
  return forMs === undefined ? undefined : { forMs, max }
}

/** Reports what would sell a dear answer at a cheap price. */
export function checkEntitlements(table: Table, { meter, pass, priceAtomic }: Route): void {
  for (const key of meter === undefined ? [] : ['again', 'trial', 'pass'])
    if (table.raw[key] !== undefined) {
      const message = `${key} does not go with a meter, by which the body decides the price`
      reportKey(table, key, message)
    }
  if (pass !== undefined && pass.priceAtomic < priceAtomic)
    reportKey(table, ['pass', 'price'], 'price of a pass must be at least that of one request')
}

/**
 * The route that sells the passes of a route, if it has some. The program makes its answer. `at`: URL of
 * the merchant.
 */
export function passOf(route: Route, at: string): Route[] {
  const { path, summary, pass } = route
  if (pass === undefined) return []
  const subject = summary || path || '/'
  const requests = `${pass.requests} request${pass.requests === 1 ? '' : 's'}`
  return [
    {
      ...route,
      path: `${path}/pass`,
      methods: ['GET'],
      priceAtomic: pass.priceAtomic,
      summary: `Pass: ${requests} of ${subject} in ${Time.inWords(pass.periodMs)}`,
      description: '',
      tail: 'none',
      isTailExact: false,
      query: {},
      fixedQuery: {},
      rewrite: {},
      params: [],
      body: undefined,
      bodyRequired: false,
      answer: Pass.schemaOf({ route: path, url: at + path, ...pass }),
      again: undefined,
      trial: undefined,
      pass: undefined,
      passOf: path,
    },
  ]
}
