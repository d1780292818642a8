import type * as Network from '../../src/protocol/Network'
import type { EventType } from '../../src/protocol/Webhook'
import type { JobRider, OrderRows } from '../Ledger'
import type { GasProduct } from '../schema'
import type { WebhookEvent } from '../WebhookLedger'
import type { Fences } from './fences'
import type { Gas } from './gas'
import type { Parts } from './parts'
import type { Json } from './rows'

/** The dependencies of the commits of settlement. */
export type SettlingParts = Parts & {
  gas: Pick<Gas, 'note'>
  products: ProductRows
  /** The event of a gas budget that this addition spends. */
  spent(gas: AddedGas): WebhookEvent | undefined
  fences?: Fences | undefined
}

/** Gas that was added to the sum of a day. */
type AddedGas = {
  network: Network.Id
  product: GasProduct
  at: number
  beforeWei: bigint
  afterWei: bigint
}

/** Rows of products as JSON for the functions that write them inside a commit of settlement. */
type ProductRows = {
  /** The `rows` of `insert_order`. */
  order(rows: OrderRows): Json
  /** The `rider` of `ride_order` or `ride_grant`. */
  rider(rider: JobRider): Json
  /** Events of a rider that was written, from what its function returned. */
  events: {
    types: readonly EventType[]
    of(rider: JobRider, ridden: Json): readonly WebhookEvent[]
  }
}
