package grpcrpc

import (
	"encoding/base64"
	"strings"

	"google.golang.org/grpc/metadata"
)

// trailerPrefix begins the keys of a trailer.
const trailerPrefix = "trailer-"

// addFields adds metadata to user fields.
func addFields(fields map[string]string, prefix string, md metadata.MD) {
	for key, values := range md {
		if strings.HasSuffix(key, "-bin") {
			fields[prefix+key] = encodeBinary(values...)
		} else {
			fields[prefix+key] = strings.Join(values, ",")
		}
	}
}

// fromRequest returns the metadata of the user fields of a request.
func fromRequest(fields map[string]string) metadata.MD {
	md := make(metadata.MD)
	for key, value := range fields {
		addField(md, strings.ToLower(key), value)
	}
	return md
}

// fromResponse returns the metadata of the user fields of a response.
func fromResponse(fields map[string]string) (header, trailer metadata.MD) {
	header, trailer = make(metadata.MD), make(metadata.MD)
	for key, value := range fields {
		key = strings.ToLower(key)
		if name, ok := strings.CutPrefix(key, trailerPrefix); ok {
			addField(trailer, name, value)
		} else if key != detailsField {
			addField(header, key, value)
		}
	}
	return header, trailer
}

func addField(md metadata.MD, key, value string) {
	if strings.HasSuffix(key, "-bin") {
		md[key] = append(md[key], decodeBinary(value)...)
	} else {
		md[key] = append(md[key], value)
	}
}

// encodeBinary returns binary values in base64, separated by commas.
func encodeBinary(values ...string) string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = base64.RawStdEncoding.EncodeToString([]byte(v))
	}
	return strings.Join(list, ",")
}

// decodeBinary returns the values of a field. A field that is not in base64 is one value.
func decodeBinary(field string) []string {
	list := strings.Split(field, ",")
	for i, v := range list {
		b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(v, "="))
		if err != nil {
			return []string{field}
		}
		list[i] = string(b)
	}
	return list
}
