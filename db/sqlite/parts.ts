import type { ChangeListener } from '../Ledger'
import type { Group } from './group'
import type { Db } from './open'
import type { Riders } from './riders'
import type { Statements } from './statements'

/** What the commits of settlement are made of. */
export type Parts = {
  db: Db
  group: Group
  statements: Statements
  changes: ChangeListener
  riders: Riders
}
