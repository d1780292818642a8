import type { ChangeListener } from '../Ledger'
import type { Group } from './group'
import type { Db } from './open'
import type { Outbox } from './outbox'
import type { Riders } from './riders'
import type { Statements } from './statements'

/** The dependencies of the commits of settlement. */
export type Parts = {
  db: Db
  group: Group
  statements: Statements
  changes: ChangeListener
  riders: Riders
  outbox: Outbox
}
