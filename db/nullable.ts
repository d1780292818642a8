/** Maps a value, and returns null for null: a prepared statement passes nulls to a column's map. */
export function nullable<In, Out>(value: In, map: (value: In) => Out): Out {
  return value === null ? (null as Out) : map(value)
}
