/** Maps a value that is not null. Prepared statements pass null to a column's map, too. */
export function nullable<In, Out>(value: In, map: (value: In) => Out): Out {
  return value === null ? (null as Out) : map(value)
}
