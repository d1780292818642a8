import { and, eq, inArray, isNotNull, type SQL, sql } from 'drizzle-orm'
import type { Condition, Rule, Value } from '../order-rules'
import { orders } from '../orders'
import type { Db } from './open'
import { parameter } from './statement'

/** The statement of a rule. Its parameters have the names that `givenBy` gives them. */
export function prepareMove({ orm }: Db, rule: Rule) {
  const { from, to, set = {}, when = [] } = rule
  const values = Object.fromEntries(
    Object.entries(set).map(([column, value]) => [column, columnValue(value)]),
  )
  return orm
    .update(orders)
    .set({ ...values, ...(to && { state: to }), updatedAt: parameter('at') })
    .where(
      and(
        eq(orders.id, parameter('id')),
        inArray(orders.state, [...from]),
        ...when.map(conditionOf),
      ),
    )
    .returning()
    .prepare()
}

function conditionOf(condition: Condition): SQL {
  const column = orders[condition.column]
  return 'isSet' in condition ? isNotNull(column) : sql`${column} IS ${columnValue(condition.is)}`
}

function columnValue(value: Value): SQL {
  if (value === null) return sql`NULL`
  return 'given' in value ? parameter(value.given) : sql`${parameter(value.after)} + 1`
}
